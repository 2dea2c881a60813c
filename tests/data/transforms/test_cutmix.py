"""CutMix: boxes of the area they claim, labels that share by it, and nothing but seed and step decides."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.cutmix import cutmix, cutmix_box
from vitreous.data.transforms.mixup import one_hot
from vitreous.training.recipes.recipe import Recipe


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 3, 8, 10, generator=generator), one_hot([(i % 7,) for i in range(size)], 7)


@pytest.mark.parametrize("step", range(8))
def test_every_pixel_is_the_images_own_or_its_neighbours_and_labels_follow_the_area(step: int) -> None:
    images, targets = batch(5)
    mixed, labels = cutmix(images, targets, 1.0, 0, step)
    before, own = np.roll(images.numpy(), 1, axis=0), mixed.numpy() == images.numpy()
    assert np.array_equal(mixed.numpy(), np.where(own, images.numpy(), before))
    share = own[0, 0].mean()
    assert (own == own[0, 0]).all()  # one box for all images and channels
    np.testing.assert_allclose(
        labels.numpy(), share * targets.numpy() + (1 - share) * np.roll(targets.numpy(), 1, 0), atol=1e-6
    )


def test_boxes_have_the_area_of_the_paper() -> None:
    """For alpha 1 the share is uniform, and a box within the border has the area 1 - share: the mean of all that fit."""
    boxes = [cutmix_box(64, 96, 1.0, 0, step) for step in range(2000)]
    areas = np.array([(rows.stop - rows.start) * (columns.stop - columns.start) / (64 * 96) for rows, columns in boxes])
    # E[area] of a box cut off at the border: per axis, a length l = sqrt(1 - a) around a uniform centre keeps l - l^2 / 4.
    uniform = np.linspace(0, 1, 20001)
    expected = ((np.sqrt(uniform) - uniform / 4) ** 2).mean()
    assert areas.mean() == pytest.approx(expected, abs=3 * areas.std() / math.sqrt(len(areas)))
    assert len(set(areas)) > 500


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.01, 8), st.integers(), st.integers(min_value=0))
def test_a_box_lies_within_the_image(height: int, width: int, alpha: float, seed: int, step: int) -> None:
    rows, columns = cutmix_box(height, width, alpha, seed, step)
    assert 0 <= rows.start <= rows.stop <= height
    assert 0 <= columns.start <= columns.stop <= width
    assert (rows, columns) == cutmix_box(height, width, alpha, seed, step)


def test_alpha_0_and_a_single_image_change_nothing_and_a_wrong_alpha_is_named() -> None:
    images, targets = batch(4)
    for found in (cutmix(images, targets, 0, 0, 0), cutmix(images[:1], targets[:1], 0.5, 0, 0)):
        torch.testing.assert_close(found, (images[: len(found[0])], targets[: len(found[0])]), rtol=0, atol=0)
    with pytest.raises(VitreousError, match=r"recipe custom.*cutmix|cutmix\(-1\)"):
        Recipe(steps=1, cutmix=-1.0)
    with pytest.raises(VitreousError, match="for classification"):
        Recipe(steps=1, cutmix=1.0, objective="masked-patch")
