"""Preprocessed images, seen again: every preprocessing's values come back within one grey level."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.data.transforms.denormalise import denormalise

from conftest import random_checkpoint


def classifier(preprocess: str, channels: int = 3) -> Classifier:
    size = dict(image_size=(8, 12), width=12, depth=1, heads=2, mlp=8, classes=2, channels=channels)
    return Classifier(random_checkpoint("ViT-Ti/4", preprocess=preprocess, **size))


@pytest.mark.parametrize(
    ("preprocess", "channels"),
    [
        ("resize(8,12)|range(-1,1)", 3),
        ("resize(8,12)|range(0,1)", 3),
        ("resize(8,12)|range(0,255)", 3),
        ("resize(8,12)|range(1,-1)", 3),
        ("resize(8,12)|normalise(imagenet)", 3),
        ("resize(8,12)|normalise(0.5,0.4,0.3,0.2,0.25,0.3)", 3),
        ("resize(8,12)|range(0,255)|normalise(imagenet)", 3),
        ("resize(8,12)", 3),
        ("range(-1,1)|resize(8,12,bilinear-plain)", 3),
        ("normalise(imagenet)|resize(8,12,bilinear-plain)", 3),
        ("resize(8,12)|range(-1,1)", 1),
        ("resize(8,12)|normalise(0.1,0.3)", 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_there_and_back(preprocess: str, channels: int, dtype: torch.dtype) -> None:
    image = np.random.default_rng(0).integers(0, 256, (8, 12, channels), dtype=np.uint8)
    clf = classifier(preprocess, channels)
    found = denormalise(clf.preprocess, clf.prepare(image if channels == 3 else image[..., 0])[0].to(dtype))
    assert found.dtype == np.uint8
    assert found.shape == (8, 12, 3)
    assert np.abs(found.astype(int) - image).max() <= 1


def test_what_is_shown_is_what_was_cropped() -> None:
    """The model's view of a larger image: its middle, not the whole."""
    image = np.zeros((20, 24, 3), np.uint8)
    image[6:14, 6:18] = np.random.default_rng(1).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    clf = classifier("central_crop(8,12)|normalise(imagenet)")
    assert np.abs(denormalise(clf.preprocess, clf.prepare(image)[0]).astype(int) - image[6:14, 6:18]).max() <= 1


def test_half_precision_and_values_beyond_the_range() -> None:
    clf = classifier("resize(8,12)|range(-1,1)")
    image = np.random.default_rng(2).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    found = denormalise(clf.preprocess, clf.prepare(image)[0].bfloat16())
    assert np.abs(found.astype(int) - image).max() <= 1
    far = torch.full((3, 8, 12), 5.0)
    far[:, :4] = -5.0
    assert denormalise(clf.preprocess, far)[:4].max() == 0
    assert denormalise(clf.preprocess, far)[4:].min() == 255


def test_the_tensor_stays_as_it_was() -> None:
    clf = classifier("resize(8,12)|normalise(imagenet)")
    prepared = clf.prepare(np.zeros((8, 12, 3), np.uint8))[0].requires_grad_()
    before = prepared.detach().clone()
    denormalise(clf.preprocess, prepared)
    assert torch.equal(prepared, before)


@pytest.mark.parametrize(
    ("preprocess", "prepared", "said"),
    [
        ("resize(8,12)|range(-1,1)", torch.zeros(1, 3, 8, 12), "one preprocessed image"),
        ("resize(8,12)|range(-1,1)", torch.zeros(3, 8, 12, dtype=torch.uint8), "uint8"),
        ("resize(8,12)|range(-1,1)", torch.full((3, 8, 12), torch.nan), "not finite"),
        ("resize(8,12)|range(2,2)", torch.zeros(3, 8, 12), r"range\(2,2\)"),
        ("resize(8,12)|normalise(imagenet)", torch.zeros(1, 8, 12), "3 channels, the preprocessed image 1"),
    ],
)
def test_what_cannot_be_shown_is_named(preprocess: str, prepared: torch.Tensor, said: str) -> None:
    with pytest.raises(VitreousError, match=said):
        denormalise(classifier(preprocess).preprocess, prepared)


def test_other_numbers_of_channels() -> None:
    """Of five channels the first three are taken for colours; of two the first is shown in grey."""
    clf = classifier("resize(8,12)|range(0,255)")
    many = torch.rand(5, 8, 12) * 255
    np.testing.assert_array_equal(denormalise(clf.preprocess, many), many[:3].round().byte().permute(1, 2, 0).numpy())
    np.testing.assert_array_equal(denormalise(clf.preprocess, many[:2])[..., 2], many[0].round().byte().numpy())
