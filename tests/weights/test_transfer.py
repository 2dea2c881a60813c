"""Loading for transfer: new head, new size, new patch; every change asked for and none other, each one noted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from vitreous.classifier import Classifier, load
from vitreous.core.errors import VitreousError
from vitreous.weights.transfer import adapt, resize_patch

from conftest import Reference, random_checkpoint, relative

CHECKPOINT = random_checkpoint("ViT-Ti/16", depth=2, classes=9, image_size=64, representation=True, names=tuple("abcdefghi"))


def test_loading_without_options_changes_nothing() -> None:
    assert adapt(CHECKPOINT) == CHECKPOINT


def test_a_new_head_is_zero_and_drops_the_representation_layer() -> None:
    new = adapt(CHECKPOINT, classes=4)
    clf = Classifier(new)
    assert clf.config.representation is None
    assert not clf.model.head.weight.any()
    assert not clf.model.head.bias.any()
    assert clf.model.head.weight.shape == (4, 192)
    assert clf.classes == ("0", "1", "2", "3")
    assert any("representation layer dropped" in note for note in new.notes)
    assert any("9 classes replaced by a zero one of 4" in note for note in new.notes)
    without = adapt(CHECKPOINT, classes=0)
    assert "the checkpoint has no head: a zero one of 4 classes added" in adapt(without, classes=4).notes
    assert adapt(without, classes=0).notes == without.notes
    body = [key for key in CHECKPOINT.tensors if not key.startswith(("head", "representation"))]
    assert all(torch.equal(new.tensors[key], CHECKPOINT.tensors[key]) for key in body)


def test_the_representation_layer_can_be_kept() -> None:
    new = adapt(CHECKPOINT, classes=4, keep_representation=True)
    assert new.config.representation == 192
    assert torch.equal(new.tensors["representation.weight"], CHECKPOINT.tensors["representation.weight"])


def test_no_head_gives_features() -> None:
    clf = Classifier(adapt(CHECKPOINT, classes=0))
    assert clf.model(torch.randn(1, 3, 64, 64)).shape == (1, 192)
    with pytest.raises(VitreousError, match="has no head"):
        clf.predict(torch.randn(1, 3, 64, 64))


def test_image_size_resizes_positions_and_preprocessing_only() -> None:
    new = adapt(CHECKPOINT, image_size=(96, 128))
    assert new.config.grid == (6, 8)
    assert new.tensors["positions.0.table"].shape == (1 + 48, 192)
    assert torch.equal(new.tensors["positions.0.table"][0], CHECKPOINT.tensors["positions.0.table"][0])  # the class token's row
    others = [key for key in CHECKPOINT.tensors if not key.startswith("positions")]
    assert all(torch.equal(new.tensors[key], CHECKPOINT.tensors[key]) for key in others)
    assert new.preprocess == "resize(96,128,bicubic)|range(-1,1)"
    assert any("4x4 to 6x8" in note and "bilinear-aligned" in note for note in new.notes)


def test_resized_at_loading_or_on_the_fly_is_the_same() -> None:
    images = torch.randn(1, 3, 96, 128)
    with torch.no_grad():
        fly = Classifier(CHECKPOINT).model(images)
        loaded = Classifier(adapt(CHECKPOINT, image_size=(96, 128))).model(images)
    assert relative(fly, loaded) < 1e-6


def test_any_mode_by_name() -> None:
    tables = [adapt(CHECKPOINT, image_size=96, position_resize=mode).tensors["positions.0.table"]
              for mode in ("bilinear-aligned", "bicubic", "nearest")]  # fmt: skip
    assert not torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[1], tables[2])


@pytest.mark.parametrize("options", [dict(positions="2d"), dict(positions="relative"), dict(position_placement="every")])
def test_every_kind_of_learned_position_is_resized(options: dict[str, str]) -> None:
    checkpoint = random_checkpoint("ViT-Ti/16", depth=2, classes=3, image_size=64, **options)
    images = torch.randn(1, 3, 96, 64)
    with torch.no_grad():
        fly = Classifier(checkpoint).model(images)
        loaded = Classifier(adapt(checkpoint, image_size=(96, 64))).model(images)
    assert relative(fly, loaded) < 1e-5


@pytest.mark.parametrize("patch", [16, 24, 32])
def test_a_larger_patch_embeds_a_larger_image_alike(patch: int) -> None:
    """Pseudo-inverse resize: the new kernel on the enlarged patch gives what the old one gave on the original."""
    kernel = torch.randn(6, 3, 12, 12)
    pixels = torch.randn(2, 3, 12, 12)
    enlarged = F.interpolate(pixels.double(), size=(patch, patch), mode="bilinear", antialias=True).float()
    before = F.conv2d(pixels, kernel).flatten()
    after = F.conv2d(enlarged, resize_patch(kernel, (patch, patch))).flatten()
    assert relative(after, before) < 1e-4


def test_a_smaller_patch_is_the_least_squares_answer() -> None:
    """Compared with the closed form (B B^T)^-1 B w, which is pinv(B)^T w for a resize B of full row rank."""
    kernel = torch.randn(2, 1, 8, 8)
    basis = F.interpolate(torch.eye(64).view(64, 1, 8, 8).double(), size=(4, 4), mode="bilinear", antialias=True)
    b = basis.flatten(1).T
    expected = torch.linalg.solve(b @ b.T, b @ kernel.double().flatten(1).T).T.view(2, 1, 4, 4)
    assert relative(resize_patch(kernel, (4, 4)).double(), expected) < 1e-5


@pytest.mark.parametrize("patch", [(8, 8), (20, 12), (32, 32)])
def test_patch_resize_agrees_with_timm(patch: tuple[int, int]) -> None:
    from timm.layers import resample_patch_embed

    kernel = torch.randn(5, 3, 16, 16)
    expected = resample_patch_embed(kernel, list(patch), interpolation="bilinear", antialias=True)
    assert relative(resize_patch(kernel, patch), expected) < 1e-4


def test_changing_the_patch_keeps_the_grid_unless_a_size_is_given() -> None:
    new = adapt(CHECKPOINT, patch=32)
    assert (new.config.patch, new.config.image_size, new.config.grid) == ((32, 32), (128, 128), (4, 4))
    assert new.preprocess.startswith("resize(128")
    both = adapt(CHECKPOINT, patch=8, image_size=64)
    assert both.config.grid == (8, 8)
    assert both.config.name == "ViT-192x2/8"
    assert Classifier(both).model(torch.randn(1, 3, 64, 64)).shape == (1, 9)


def test_hybrids_and_resnets_take_another_size() -> None:
    reference = Reference("vt_hybrid_stage3")
    assert load(reference.path, image_size=(64, 128)).config.grid == (4, 8)
    assert load(Reference("bv_bit_v1").path, image_size=64).config.image_size == (64, 64)
    with pytest.raises(VitreousError, match="neither patches nor positions"):
        load(Reference("bv_bit_v1").path, patch=8)


def test_an_impossible_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="nearest --image-size is 64 or 80"):
        adapt(CHECKPOINT, image_size=70)
