"""Masked patch prediction: corruption by its statistics, the loss against a slow second way, and whether anything is learnt."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.build import create
from vitreous.training.objectives.masked_patch import MaskedPatches, corrupt, corrupted_count, draw_corruption, gather_tokens

from conftest import randomise

datasets = pytest.importorskip("sklearn.datasets")
PHOTOS = [Path(datasets.__file__).parent / "images" / name for name in ("china.jpg", "flower.jpg")]
SCALED = Preprocess("range(-1,1)")
CPU = torch.device("cpu")
SMALL: dict[str, Any] = dict(width=32, heads=2, mlp=64, depth=2, classes=0, mask_token=True)


def photographs(height: int, width: int, scale: str = "range(-1,1)") -> Tensor:
    """Both, and a mirrored and an upside-down one."""
    whole = torch.stack([Preprocess(f"resize({height},{width})|{scale}")(path) for path in PHOTOS])
    return torch.cat([whole, whole.flip(3), whole.flip(2)])


def objective(share: float = 0.5, target: Any = "mean", size: Any = (32, 48), name: str = "ViT-Ti/8", **options: Any) -> Any:
    model = create(name, image_size=size, **(SMALL | options))
    return MaskedPatches(model, share, target, SCALED)


# Corruption -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "patches", "count"), [(0.5, 196, 98), (0.15, 196, 29), (0.5, 49, 24), (0.001, 16, 1), (1.0, 9, 9)]
)
def test_exactly_that_many_patches_of_every_image(share: float, patches: int, count: int) -> None:
    drawn = draw_corruption(40, patches, share, CPU)
    assert corrupted_count(share, patches) == count
    assert drawn.places_BK.shape == (40, count)
    for places in drawn.places_BK.tolist():
        assert len(set(places)) == count
        assert set(places) <= set(range(patches))


def test_every_patch_is_as_likely_and_every_image_has_its_own_set() -> None:
    images, patches = 4000, 20
    places = draw_corruption(images, patches, 0.5, CPU).places_BK
    chosen = torch.zeros(images, patches).scatter(1, places, 1.0)
    times = chosen.sum(0).numpy()
    assert abs(times - images / 2).max() < 4.5 * math.sqrt(images / 4)
    together = (chosen.T @ chosen).numpy()[np.triu_indices(patches, 1)] / images  # pairs, without replacement
    expected = 10 / 20 * 9 / 19
    assert abs(together - expected).max() < 5 * math.sqrt(expected * (1 - expected) / images)
    assert len({tuple(row) for row in chosen.tolist()}) > 3900  # of 184,756 possible sets


def test_eighty_ten_ten() -> None:
    drawn = draw_corruption(2000, 64, 0.5, CPU)
    n = drawn.places_BK.numel()
    other = drawn.sources_BK != drawn.places_BK
    masked, replaced, kept = (
        int(drawn.masked_BK.sum()),
        int((other & ~drawn.masked_BK).sum()),
        int((~other & ~drawn.masked_BK).sum()),
    )
    assert masked + replaced + kept == n
    assert stats.chisquare([masked, replaced, kept], [0.8 * n, 0.1 * n, 0.1 * n]).pvalue > 1e-4
    # Patch by patch: the number of masked ones among an image's 32 is binomial, no fixed 26.
    per_image = drawn.masked_BK.sum(1).double()
    assert float(per_image.var()) == pytest.approx(32 * 0.8 * 0.2, rel=0.15)


def test_another_patch_is_never_the_patch_itself() -> None:
    """With two patches, itself would be drawn for half of the replaced ones, and kept would be 15 % of all."""
    drawn = draw_corruption(20_000, 2, 1.0, CPU)
    kept = ~drawn.masked_BK & (drawn.sources_BK == drawn.places_BK)
    assert abs(float(kept.float().mean()) - 0.1) < 0.008
    # With more, each of the others is as likely.
    drawn = draw_corruption(4000, 7, 1.0, CPU)
    replaced = ~drawn.masked_BK & (drawn.sources_BK != drawn.places_BK)
    distance = (drawn.sources_BK - drawn.places_BK)[replaced] % 7
    assert stats.chisquare(np.bincount(distance.numpy(), minlength=7)[1:]).pvalue > 1e-4


def test_draws_follow_the_global_seed() -> None:
    def at(seed: int) -> Tensor:
        torch.manual_seed(seed)
        drawn = draw_corruption(4, 30, 0.5, CPU)
        return torch.stack([drawn.places_BK, drawn.masked_BK.long(), drawn.sources_BK])

    assert torch.equal(at(1), at(1))
    assert not torch.equal(at(1), at(2))


def test_what_stands_in_for_what() -> None:
    patches = torch.randn(50, 24, 8)
    token = torch.randn(1, 1, 8)
    drawn = draw_corruption(50, 24, 0.5, CPU)
    after = corrupt(patches, token, drawn)
    seen = set()
    for image in range(50):
        how = {
            int(place): (bool(masked), int(source))
            for place, masked, source in zip(
                drawn.places_BK[image], drawn.masked_BK[image], drawn.sources_BK[image], strict=True
            )
        }
        for place in range(24):
            masked, source = how.get(place, (False, place))
            expected = token[0, 0] if masked else patches[image, source]
            assert torch.equal(after[image, place], expected)  # untouched ones to the bit
            seen.add("masked" if masked else "replaced" if source != place else "kept" if place in how else "untouched")
    assert seen == {"masked", "replaced", "kept", "untouched"}


# The loss, a second time, slowly -------------------------------------------------------------------------------------------


def labels_by_hand(image: Tensor, down: int, across: int, cells: int) -> list[list[int]]:
    """From pixels in -1..1, in numpy, patch by patch; `cells` must divide the patch."""
    levels = np.rint((image.double().numpy() + 1) * 127.5).astype(int).transpose(1, 2, 0)
    labels = []
    for top in range(0, levels.shape[0], down):
        for left in range(0, levels.shape[1], across):
            row = []
            for y in range(cells):
                for x in range(cells):
                    high, wide = down // cells, across // cells
                    part = levels[top + y * high : top + (y + 1) * high, left + x * wide : left + (x + 1) * wide]
                    red, green, blue = (part[:, :, c].sum() // (32 * high * wide) for c in range(3))
                    row.append(int(red * 64 + green * 8 + blue))
            labels.append(row)
    return labels


def by_hand(learner: Any, images: Tensor, seed: int) -> tuple[list[float], float]:
    """Loss of each image and the sum of the shares of right answers: image by image and patch by patch, in numpy."""
    model, kind = learner.model, learner.target.kind
    down, across = model.config.step
    torch.manual_seed(seed)
    drawn = draw_corruption(len(images), model.config.grid[0] * model.config.grid[1], learner.share, CPU)
    losses, right = [], 0.0
    for number, image in enumerate(images):
        patches, grid = model.patches(image[None])
        rows = list(patches[0])
        for place, masked, source in zip(
            drawn.places_BK[number].tolist(), drawn.masked_BK[number], drawn.sources_BK[number], strict=True
        ):
            rows[place] = model.mask_token[0, 0] if masked else patches[0, source]
        outputs = model.norm(model.encode(model.sequence(torch.stack(rows)[None], grid), grid))[0, model.prefix_tokens :]
        cells = 4 if kind == "downsized" else 1
        labels = labels_by_hand(image, down, across, cells)
        errors, hits = [], []
        for place in drawn.places_BK[number].tolist():
            answer = (outputs[place] @ learner.predictor.weight.T + learner.predictor.bias).double().numpy()
            if kind == "pixels":
                top, left = place // grid[1] * down, place % grid[1] * across
                wanted = image[:, top : top + down, left : left + across].permute(1, 2, 0).reshape(-1).double().numpy()
                errors += ((answer - wanted) ** 2).tolist()
                continue
            for logits, label in zip(answer.reshape(cells * cells, 512), labels[place], strict=True):
                errors.append(math.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label])
                hits.append(logits.argmax() == label)
        losses.append(float(np.mean(errors)))
        right += float(np.mean(hits)) if hits else 0.0
    return losses, right


VARIANTS: dict[str, dict[str, Any]] = {
    "class token": {},
    "no leading token": dict(pool="gap", class_token=False, position_prefix=0),
    "five leading tokens": dict(distillation_token=True, registers=3),
    "axial": dict(pool="gap", class_token=False, position_prefix=0, attention="axial"),
    "norm after pooling": dict(pool="gap", norm_after_pool=True),
    "hybrid": dict(name="R+ViT-Ti/16", patch=(2, 4), size=(32, 48)),
}


@torch.no_grad()
@pytest.mark.parametrize("target", ["mean", "downsized", "pixels"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_accuracy_against_a_slow_second_way(variant: str, target: str) -> None:
    learner = objective(target=target, **VARIANTS[variant]).eval()
    randomise(learner)
    images = photographs(32, 48)
    torch.manual_seed(5)
    loss, sums = learner(images, torch.zeros(len(images), 0))
    losses, right = by_hand(learner, images, seed=5)
    assert loss.shape == (6,)
    assert loss.dtype == torch.float32
    np.testing.assert_allclose(loss.numpy(), losses, rtol=2e-5)
    assert len({round(value, 4) for value in losses}) == 6
    if target == "pixels":
        assert sums == {}
    else:
        assert sums["top1"].ndim == 0
        assert float(sums["top1"]) == pytest.approx(right, abs=1e-6)


@torch.no_grad()
def test_top1_counts_what_is_right() -> None:
    """A predictor that always answers one colour is right where that is the colour, and pays nothing there."""
    learner = objective(share=1.0)
    images = photographs(32, 48)
    labels = [labels_by_hand(image, 8, 8, 1) for image in images]
    commonest = int(np.bincount(np.ravel(labels)).argmax())
    learner.predictor.weight.zero_()
    learner.predictor.bias.zero_()[commonest] = 100.0
    loss, sums = learner(images)
    shares = [np.mean([row[0] == commonest for row in rows]) for rows in labels]
    assert 0 < sum(shares) < 3
    assert float(sums["top1"]) == pytest.approx(sum(shares))
    np.testing.assert_allclose(loss.numpy(), [100 * (1 - share) for share in shares], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_model_never_sees_what_is_masked() -> None:
    """With every patch masked, two different images get the same answers."""
    learner = objective(share=1.0).eval()
    heard: list[Tensor] = []
    learner.predictor.register_forward_hook(lambda module, inputs, output: heard.append(output))
    for seed in range(10_000):  # a draw in which all 24 patches are masked: one in 212
        torch.manual_seed(seed)
        if draw_corruption(1, 24, 1.0, CPU).masked_BK.all():
            break
    for image in photographs(32, 48)[:2]:
        torch.manual_seed(seed)
        learner(image[None])
    torch.testing.assert_close(heard[0], heard[1], atol=0, rtol=0)


@torch.no_grad()
def test_the_scale_of_the_input_changes_no_label() -> None:
    """The same photographs, scaled in three ways, have the same labels at the same places; images of other sizes work too."""
    found = []
    for scale in ("range(-1,1)", "range(0,1)", "normalise(imagenet)"):
        preprocess = Preprocess(f"resize(40,64)|{scale}")
        learner = MaskedPatches(create("ViT-Ti/8", image_size=32, **SMALL), 1.0, "mean", preprocess)
        learner.predictor.weight.zero_()
        learner.predictor.bias.copy_(torch.arange(512.0))
        found.append(learner(photographs(40, 64, scale))[0])
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


# Training ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["mean", "downsized", "pixels"])
def test_gradient_reaches_everything_that_is_trained(target: str) -> None:
    learner = objective(target=target, classes=10, representation=16)
    loss, _ = learner(photographs(32, 48), torch.zeros(6, 10))
    loss.mean().backward()
    for name, parameter in learner.named_parameters():
        if name.startswith(("model.head.", "model.representation.")):
            assert not parameter.requires_grad
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_overfits_a_few_photographs_and_beats_the_histogram() -> None:
    """A model that knew only how frequent each colour is could not come below the entropy of the labels."""
    torch.manual_seed(0)
    learner = objective(width=64, mlp=128)
    images = photographs(32, 48)[:2]
    counts = np.bincount(np.ravel([labels_by_hand(image, 8, 8, 1) for image in images]))
    frequency = counts[counts > 0] / counts.sum()
    entropy = -float((frequency * np.log(frequency)).sum())
    optimiser = torch.optim.AdamW(learner.parameters(), lr=3e-3)
    batch = images.repeat(4, 1, 1, 1)
    history = []
    for _ in range(70):
        loss, sums = learner(batch)
        optimiser.zero_grad()
        loss.mean().backward()
        optimiser.step()
        history.append((float(loss.detach().mean()), float(sums["top1"]) / len(batch)))
    first, last = history[0], np.mean(history[-10:], axis=0)
    assert first[0] > math.log(512) - 0.5
    assert last[0] < 0.5 * entropy
    assert last[1] > 0.8 > 0.2 > first[1]


def test_the_pixels_target_falls_below_the_variance() -> None:
    torch.manual_seed(0)
    learner = objective(target="pixels", width=64, mlp=128)
    images = photographs(32, 48)[:2].repeat(4, 1, 1, 1)
    optimiser = torch.optim.AdamW(learner.parameters(), lr=3e-3)
    history = []
    for _ in range(50):
        loss, _ = learner(images)
        optimiser.zero_grad()
        loss.mean().backward()
        optimiser.step()
        history.append(float(loss.detach().mean()))
    assert np.mean(history[-10:]) < 0.5 * float(images.var())


def test_under_ddp(tmp_path: Path) -> None:
    """DDP wants a gradient for every parameter: a head that the objective does not use must not be waited for."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        alone = objective(classes=10, representation=16)
        wrapped = nn.parallel.DistributedDataParallel(alone)
        images = photographs(32, 48)
        for step in range(3):
            torch.manual_seed(step)
            loss, _ = wrapped(images, torch.zeros(6, 10))
            torch.manual_seed(step)
            torch.testing.assert_close(loss, alone(images)[0])
            loss.mean().backward()
    finally:
        torch.distributed.destroy_process_group()


def test_compiles_into_one_graph() -> None:
    learner = objective()
    images = photographs(32, 48)
    torch.manual_seed(3)
    expected = learner(images)[0]
    torch.manual_seed(3)
    found = torch.compile(learner, backend="eager", fullgraph=True)(images)[0]
    torch.testing.assert_close(found, expected)


def test_under_bfloat16_autocast() -> None:
    """In a process of its own: some machines announce matrix instructions that they do not have, and die of the first."""
    program = """
import torch
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.build import create
from vitreous.training.objectives.masked_patch import MaskedPatches
torch.manual_seed(0)
model = create("ViT-Ti/8", image_size=(32, 48), width=32, heads=2, mlp=64, depth=2, classes=0, mask_token=True)
images = torch.randint(0, 256, (4, 3, 4, 6)).repeat_interleave(8, 2).repeat_interleave(8, 3) / 127.5 - 1
for target in ("mean", "downsized", "pixels"):
    learner = MaskedPatches(model, 0.5, target, Preprocess("range(-1,1)"))
    losses = []
    for precise in (True, False):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
            loss, sums = learner(images)
        assert loss.dtype == torch.float32, loss.dtype
        losses.append(loss.detach())
    loss.mean().backward()
    assert model.mask_token.grad.dtype == torch.float32 and model.mask_token.grad.abs().max() > 0
    torch.testing.assert_close(*losses, rtol=0.02, atol=0)
    assert not torch.equal(*losses)
"""
    safe = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=safe)
    assert done.returncode == 0, done.stderr


def test_an_empty_batch_has_no_loss() -> None:
    """What is left of a batch of which nothing could be read."""
    loss, sums = objective()(torch.zeros(0, 3, 32, 48))
    assert loss.shape == (0,)
    assert float(sums["top1"]) == 0.0


# Faults -----------------------------------------------------------------------------------------------------------------


def test_faults() -> None:
    with pytest.raises(VitreousError, match="at least 2 patches, not 1"):
        objective()(torch.zeros(2, 3, 8, 8))
    with pytest.raises(VitreousError, match="normalises pooled features"):
        objective(pool="token+mean", norm_after_pool=True)
    with pytest.raises(VitreousError, match="1 or 3 channels"):
        objective(channels=2)
    with pytest.raises(VitreousError, match="not a multiple"):
        objective()(torch.zeros(2, 3, 33, 48))


def test_taken_and_grey() -> None:
    values = torch.arange(24).view(2, 4, 3)
    assert gather_tokens(values, torch.tensor([[3, 0], [1, 1]])).tolist() == [[[9, 10, 11], [0, 1, 2]], [[15, 16, 17]] * 2]
    digits = torch.from_numpy(datasets.load_digits().images[:8, None]).float() / 8 - 1
    learner = objective(name="ViT-Ti/2", size=8, channels=1, target="downsized")
    assert learner.predictor.out_features == 4 * 8
    assert torch.isfinite(learner(digits)[0]).all()
