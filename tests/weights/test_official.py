"""The authors' files: same logits as their own JAX code, and the same bits there and back.

The fixtures are small random checkpoints run through the authors' released code (vision_transformer and big_vision):
class token, average pooling, representation layer, no positions, all hybrid forms, both BiT forms, big_vision's own
layouts. `images_big` and `logits_big` are the same after the authors' resize of the position embeddings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.classifier import Classifier, load
from vitreous.core.errors import VitreousError

from conftest import Reference, fixture_names, random_checkpoint, relative


@torch.no_grad()
def logits(clf: Classifier, images: torch.Tensor) -> torch.Tensor:
    return clf.model(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", fixture_names())
def test_logits_of_the_authors_code(name: str) -> None:
    reference = Reference(name)
    assert relative(logits(load(reference.path), reference.images()), reference.logits()) < 1e-5


@pytest.mark.parametrize("name", fixture_names())
def test_logits_after_the_authors_resize(name: str) -> None:
    reference = Reference(name)
    images = reference.images("images_big")
    clf = load(reference.path, image_size=(images.shape[2], images.shape[3]))
    assert clf.config.image_size == tuple(images.shape[2:])
    assert relative(logits(clf, images), reference.logits("logits_big")) < 1e-5


def weights_of(reference: Reference) -> dict[str, np.ndarray[Any, Any]]:
    return {name.removeprefix("w:"): array for name, array in reference.arrays.items() if name.startswith("w:")}


@pytest.mark.parametrize("name", [name for name in fixture_names() if name.startswith("vt_")])
def test_there_and_back_is_bit_identical(name: str, tmp_path: Path) -> None:
    reference = Reference(name)
    load(reference.path).save(tmp_path / "ours")
    load(tmp_path / "ours").save(tmp_path / "back.npz")
    with np.load(tmp_path / "back.npz", allow_pickle=False) as back:
        before = weights_of(reference)
        assert set(back.files) == set(before)
        for key, array in before.items():
            assert np.array_equal(back[key].reshape(array.shape), array), key
            assert back[key].dtype == np.float32


@pytest.mark.parametrize("name", [name for name in fixture_names() if name.startswith("bv_")])
def test_big_visions_layouts_become_released_ones_with_the_same_logits(name: str, tmp_path: Path) -> None:
    reference = Reference(name)
    load(reference.path).save(tmp_path / "released.npz")
    images = reference.images()
    assert torch.equal(logits(load(tmp_path / "released.npz"), images), logits(load(reference.path), images))
    (tmp_path / "released.json").unlink()  # and without our own notes beside it, the arrays alone suffice
    if name != "bv_bit_paper":  # whose padding the released layout cannot tell
        assert torch.equal(logits(load(tmp_path / "released.npz"), images), logits(load(reference.path), images))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ViT-Ti/16", dict(depth=2, image_size=(32, 64))),
        ("ViT-Ti/16", dict(depth=2, image_size=64, pool="gap", representation=True)),
        ("R50+ViT-B/16", dict(depth=1, width=48, heads=4, mlp=64, image_size=64)),
        ("R26x1", dict(image_size=64)),
        ("R26x1", dict(image_size=64, form="post")),
    ],
)
def test_every_kind_goes_out_and_comes_back(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = random_checkpoint(name, classes=5, **options)
    Classifier(checkpoint).save(tmp_path / "x.npz")
    back = load(tmp_path / "x.npz")
    assert back.config == checkpoint.config
    assert all(torch.equal(back.checkpoint.tensors[key], tensor) for key, tensor in checkpoint.tensors.items())


def test_the_names_are_the_released_ones(tmp_path: Path) -> None:
    """The list for ViT-B/16 with representation layer has 202 arrays, spelt as the authors spell them."""
    Classifier(random_checkpoint("ViT-B/16", width=24, heads=12, mlp=48, classes=7, representation=True)).save(
        tmp_path / "x.npz"
    )
    with np.load(tmp_path / "x.npz") as arrays:
        shapes = {name: arrays[name].shape for name in arrays.files}
    assert len(shapes) == 202
    block = "Transformer/encoderblock_11"
    assert shapes["cls"] == (1, 1, 24)
    assert shapes["embedding/kernel"] == (16, 16, 3, 24)
    assert shapes["Transformer/posembed_input/pos_embedding"] == (1, 197, 24)
    assert shapes[f"{block}/MultiHeadDotProductAttention_1/query/kernel"] == (24, 12, 2)
    assert shapes[f"{block}/MultiHeadDotProductAttention_1/out/kernel"] == (12, 2, 24)
    assert shapes[f"{block}/LayerNorm_2/scale"] == (24,)
    assert shapes[f"{block}/MlpBlock_3/Dense_0/kernel"] == (24, 48)
    assert shapes["Transformer/encoder_norm/bias"] == (24,)
    assert shapes["pre_logits/kernel"] == (24, 24)
    assert shapes["head/kernel"] == (24, 7)


def test_bit_names_with_numbers_and_a_prefix(tmp_path: Path) -> None:
    Classifier(random_checkpoint("R26x1", classes=5, image_size=32)).save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as arrays:
        renamed = {}
        for index, name in enumerate(arrays.files):
            new = name.replace("standardized_conv2d/", f"standardized_conv2d_{index}/" if index else "standardized_conv2d/")
            renamed[f"module/{new}"] = arrays[name]
    np.savez(tmp_path / "y.npz", **renamed)  # type: ignore[arg-type]
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(logits(load(tmp_path / "y.npz"), images), logits(load(tmp_path / "x.npz"), images))


def test_the_file_name_decides_nothing(tmp_path: Path) -> None:
    reference = Reference("vt_hybrid_stage3")
    liar = tmp_path / "ViT-H_14-imagenet21k.npz"
    np.savez(liar, **weights_of(reference))  # type: ignore[arg-type]
    clf = load(liar)
    assert clf.config.trunk.units == (1, 1, 2)
    assert clf.config.width == 32


def test_bfloat16_arrays_are_read(tmp_path: Path) -> None:
    """jax saves bfloat16 as two raw bytes."""
    reference = Reference("bv_gap")
    weights, rounded = weights_of(reference), {}
    for key, array in weights.items():
        bits = torch.from_numpy(array).to(torch.bfloat16).view(torch.uint16).numpy()
        rounded[key] = bits.view("V2")
    np.savez(tmp_path / "half.npz", **rounded)  # type: ignore[arg-type]
    clf = load(tmp_path / "half.npz")
    assert clf.model.head.weight.dtype == torch.float32
    expected = torch.from_numpy(weights["head/kernel"].T).to(torch.bfloat16).float()
    assert torch.equal(clf.model.head.weight.detach(), expected)


def test_a_grid_that_is_no_square_needs_its_json(tmp_path: Path) -> None:
    Classifier(random_checkpoint("ViT-Ti/16", depth=1, classes=3, image_size=(32, 48))).save(tmp_path / "x.npz")
    assert load(tmp_path / "x.npz").config.grid == (2, 3)
    (tmp_path / "x.json").unlink()
    with pytest.raises(VitreousError, match=r"6 positions do not form a square.*\.json"):
        load(tmp_path / "x.npz")


def test_imagenet21k_heads_answer_with_sigmoid(tmp_path: Path) -> None:
    checkpoint = random_checkpoint("ViT-Ti/16", depth=1, width=6, heads=1, mlp=6, classes=21_843, image_size=16)
    Classifier(checkpoint).save(tmp_path / "x.npz")
    (tmp_path / "x.json").unlink()
    clf = load(tmp_path / "x.npz")
    images = torch.randn(1, 3, 16, 16)
    (best,) = clf.predict(images, top=1)
    assert best.probabilities[0] == pytest.approx(clf.model(images).sigmoid().max().item())


def test_linen_names_with_a_class_row(tmp_path: Path) -> None:
    """flax's own conversion of the released files: new names of blocks, but the table where it was, with its class row."""
    reference = Reference("vt_representation")
    new = {
        "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
        "LayerNorm_2": "LayerNorm_1",
        "MlpBlock_3": "MlpBlock_0",
    }
    renamed = {}
    for name, array in weights_of(reference).items():
        for old, other in new.items():
            name = name.replace(f"/{old}/", f"/{other}/")
        renamed[name] = array
    np.savez(tmp_path / "linen.npz", **renamed)  # type: ignore[arg-type]
    assert relative(logits(load(tmp_path / "linen.npz"), reference.images()), reference.logits()) < 1e-5


def test_a_training_state_with_moments_and_a_file_with_two_models(tmp_path: Path) -> None:
    reference = Reference("bv_tok")
    weights = weights_of(reference)
    state = {f"params/{name}": array for name, array in weights.items()}
    moments = {f"opt/0/mu/{name}": np.zeros_like(array) for name, array in weights.items()}
    np.savez(tmp_path / "state.npz", **state, **moments)  # type: ignore[arg-type]
    assert relative(logits(load(tmp_path / "state.npz"), reference.images()), reference.logits()) < 1e-5
    np.savez(tmp_path / "two.npz", **state, **{f"ema/{name}": array for name, array in weights.items()})  # type: ignore[arg-type]
    with pytest.raises(VitreousError, match="several models, under 'ema/' and 'params/'"):
        load(tmp_path / "two.npz")


def test_a_config_beside_an_npz_is_somebody_elses(tmp_path: Path) -> None:
    reference = Reference("vt_gap")
    np.savez(tmp_path / "x.npz", **weights_of(reference))  # type: ignore[arg-type]
    (tmp_path / "config.json").write_text("{ not JSON")
    assert relative(logits(load(tmp_path / "x.npz"), reference.images()), reference.logits()) < 1e-5
