"""The labels of masked patches, against plain loops over the pixels that Pillow decodes from real photographs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.denormalise import undo_scaling
from vitreous.data.transforms.ops import InceptionCrop
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.names import parse_name
from vitreous.training.objectives.patch_targets import PatchTarget, colours, pixel_levels, regions

datasets = pytest.importorskip("sklearn.datasets")
PHOTOS = [Path(datasets.__file__).parent / "images" / name for name in ("china.jpg", "flower.jpg")]

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # height x width x channels


# What is compared with: whole numbers of Python, one pixel after another ------------------------------------------------


def patches_of(pixels: Pixels, down: int, across: int) -> list[Pixels]:
    height, width, _ = pixels.shape
    return [
        pixels[top : top + down, left : left + across] for top in range(0, height, down) for left in range(0, width, across)
    ]


def colour_by_hand(patch: Pixels) -> int:
    """Of all pixels of a part: 64 times the red shade, 8 times the green one, and the blue one."""
    number = 0
    for channel in range(patch.shape[2]):
        total = sum(patch[:, :, channel].ravel().tolist())
        mean_in_32nds = total // (32 * patch.shape[0] * patch.shape[1])
        number += mean_in_32nds * 8 ** (patch.shape[2] - 1 - channel)
    return number


def downsized_by_hand(patch: Pixels, down: int = 4, across: int = 4) -> list[int]:
    """Every pixel made `down` x `across` equal ones, which always divide evenly into so many cells."""
    fine = patch.repeat(down, axis=0).repeat(across, axis=1)
    high, wide = fine.shape[0] // down, fine.shape[1] // across
    return [
        colour_by_hand(fine[y * high : (y + 1) * high, x * wide : (x + 1) * wide]) for y in range(down) for x in range(across)
    ]


def photograph(path: Path, height: int, width: int) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)


# Through the preprocessing and back ---------------------------------------------------------------------------------------


def cropped_by_hand(image: Image.Image, height: int, width: int, rng: random.Random) -> Image.Image:
    top, left = int(rng.random() * (image.height - height + 1)), int(rng.random() * (image.width - width + 1))
    return flipped_by_hand(image.crop((left, top, left + width, top + height)), rng)


def flipped_by_hand(image: Image.Image, rng: random.Random) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


@pytest.mark.parametrize("scale", ["range(-1,1)", "range(0,1)", "normalise(imagenet)", "range(3,-2)", "range(0,255)"])
@pytest.mark.parametrize("path", PHOTOS, ids=lambda path: path.stem)
def test_three_targets_after_random_crop_and_flip(path: Path, scale: str) -> None:
    preprocess = Preprocess(f"random_crop(96,128)|flip|{scale}")
    target = {kind: PatchTarget(kind, (16, 16), 3) for kind in ("mean", "downsized", "pixels")}  # type: ignore[arg-type]
    sides = set()
    for seed in (0, 1):
        images = preprocess(path, random.Random(seed))[None]
        with Image.open(path) as image:
            seen = np.asarray(cropped_by_hand(image.convert("RGB"), 96, 128, random.Random(seed)))
        patches = patches_of(seen, 16, 16)
        levels = pixel_levels(images, preprocess)
        np.testing.assert_array_equal(levels[0].permute(1, 2, 0).numpy(), seen)
        np.testing.assert_array_equal(target["mean"](levels)[0, :, 0].numpy(), [colour_by_hand(p) for p in patches])
        np.testing.assert_array_equal(target["downsized"](levels)[0].numpy(), [downsized_by_hand(p) for p in patches])
        values = np.stack([p.reshape(-1) for p in patches]).astype(np.float64)
        np.testing.assert_allclose(target["pixels"](levels)[0].numpy(), values / 127.5 - 1, atol=1e-6)
        rng = random.Random(seed)
        sides.add([rng.random() for _ in range(3)][2] < 0.5)
    assert sides == {True, False}  # mirrored images were among them, and others


@pytest.mark.parametrize("path", PHOTOS, ids=lambda path: path.stem)
def test_the_papers_own_preprocessing(path: Path) -> None:
    """inception_crop(224)|flip, as masked-patch pre-training was run (vision_transformer#103)."""
    preprocess = Preprocess("inception_crop(224)|flip|range(-1,1)")
    for seed in range(2):
        images = preprocess(path, random.Random(seed))[None]
        rng = random.Random(seed)
        with Image.open(path) as image:
            top, left, height, width = InceptionCrop(224, 224).box(image.height, image.width, rng)
            part = (
                image.convert("RGB").crop((left, top, left + width, top + height)).resize((224, 224), Image.Resampling.BILINEAR)
            )
        patches = patches_of(np.asarray(flipped_by_hand(part, rng)), 16, 16)
        levels = pixel_levels(images, preprocess)
        found = PatchTarget("mean", (16, 16), 3)(levels)[0, :, 0]
        np.testing.assert_array_equal(found.numpy(), [colour_by_hand(p) for p in patches])
        some = range(0, 196, 7)
        fine = PatchTarget("downsized", (16, 16), 3)(levels)[0]
        np.testing.assert_array_equal(fine[list(some)].numpy(), [downsized_by_hand(patches[n]) for n in some])


def test_a_scale_before_a_crop_is_undone_too() -> None:
    preprocess = Preprocess("range(-1,1)|central_crop(96)|normalise(imagenet)|flip")
    assert preprocess.scales == ()  # which is why `undo_scaling` looks further
    images = preprocess(PHOTOS[0], random.Random(0))[None]
    pixels = undo_scaling(preprocess, images)
    levels = pixels.round()
    assert (pixels - levels).abs().max() < 0.01  # float32, through four scalings
    plain = Preprocess("central_crop(96)|flip|range(0,255)")(PHOTOS[0], random.Random(0))
    torch.testing.assert_close(levels[0], plain, atol=0, rtol=0)


def test_grey_digits_have_eight_shades() -> None:
    digits = (datasets.load_digits().images[:20] * 255 / 16).astype(np.uint8)
    preprocess = Preprocess("resize(8)|range(-1,1)", channels=1)
    images = torch.stack([preprocess(Image.fromarray(digit)) for digit in digits])
    target = PatchTarget("mean", (2, 2), channels=1)
    assert (target.classes, target.outputs) == (8, 8)
    found = target(pixel_levels(images, preprocess))[:, :, 0]
    expected = [[colour_by_hand(patch) for patch in patches_of(digit[:, :, None], 2, 2)] for digit in digits]
    np.testing.assert_array_equal(found.numpy(), expected)
    assert set(found.flatten().tolist()) == set(range(8))


# The 4 x 4 cells of patches that do not divide by 4, and of those that are smaller ----------------------------------------


@pytest.mark.parametrize("patch", [(14, 14), (6, 10), (5, 7), (4, 4), (16, 9), (32, 32)])
def test_cells_of_any_patch(patch: tuple[int, int]) -> None:
    image = photograph(PHOTOS[1], 3 * patch[0], 4 * patch[1])
    levels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    found = PatchTarget("downsized", patch, 3)(levels)
    expected = [downsized_by_hand(p) for p in patches_of(np.asarray(image), *patch)]
    np.testing.assert_array_equal(found[0].numpy(), expected)


@pytest.mark.parametrize("patch", [(8, 20), (16, 16), (32, 32)])
def test_cells_agree_with_pillows_area_filter(patch: tuple[int, int]) -> None:
    """Pillow rounds the mean to a whole level before it can be cut to 3 bits; so a shade may differ at its very border.

    Only where 4 divides the patch: elsewhere its filter counts a pixel as inside or outside, by its centre.
    """
    image = photograph(PHOTOS[0], 5 * patch[0], 5 * patch[1])
    found = PatchTarget("downsized", patch, 3)(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None])[0].numpy()
    for number, part in enumerate(patches_of(np.asarray(image), *patch)):
        small = np.asarray(Image.fromarray(part).resize((4, 4), Image.Resampling.BOX)).reshape(16, 3).astype(int)
        for channel, shades in enumerate((found[number] // 64, found[number] // 8 % 8, found[number] % 8)):
            other = small[:, channel] // 32
            assert np.all((shades == other) | ((shades == other - 1) & (small[:, channel] % 32 == 0)))


@pytest.mark.parametrize(("patch", "cells"), [((2, 2), (2, 2)), ((1, 1), (1, 1)), ((3, 8), (3, 4)), ((16, 16), (4, 4))])
def test_a_small_patch_is_not_made_larger(patch: tuple[int, int], cells: tuple[int, int]) -> None:
    target = PatchTarget("downsized", patch, 3)
    assert target.cells == cells
    assert target.outputs == cells[0] * cells[1] * 512
    image = photograph(PHOTOS[0], 4 * patch[0], 4 * patch[1])
    found = target(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None])[0].numpy()
    np.testing.assert_array_equal(found, [downsized_by_hand(p, *cells) for p in patches_of(np.asarray(image), *patch)])


# Borders, order, hybrids ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["range(-1,1)", "normalise(imagenet)"])
def test_a_mean_on_the_border_of_two_shades_belongs_to_the_upper_one(scale: str) -> None:
    """In floating point half of these would fall to the lower one: 32 comes back from the scale as 31.999998."""
    preprocess = Preprocess(scale)
    levels = np.arange(0, 256, 32).repeat(256).reshape(8, 16, 16, 1).repeat(3, axis=3).astype(np.uint8)
    below = levels.copy()
    below[1:, 3, 5, :] -= 1  # one pixel of 256, one level less
    for pictures, expected in ((levels, [0, *range(1, 8)]), (below, [0, *range(7)])):
        images = torch.stack([preprocess(picture) for picture in pictures])
        found = PatchTarget("mean", (16, 16), 3)(pixel_levels(images, preprocess))
        assert found.flatten().tolist() == [73 * shade for shade in expected]


def test_numbers_of_the_colours() -> None:
    """64 red + 8 green + blue."""
    pure = {(255, 0, 0): 448, (0, 255, 0): 56, (0, 0, 255): 7, (255, 255, 255): 511, (0, 0, 0): 0, (32, 64, 96): 64 + 16 + 3}
    for colour, number in pure.items():
        levels = torch.tensor(colour, dtype=torch.uint8)[None, :, None, None].expand(1, 3, 4, 4)
        assert colours(levels, (4, 4), (1, 1)).tolist() == [[[number]]]


def test_patches_come_in_the_models_order() -> None:
    """A patch embedding that averages its patch gives, in its own order, the means that the labels are made of."""
    from vitreous.models.build import create

    model = create("ViT-Ti/16", image_size=(48, 80), patch=(8, 16), width=6, heads=1, mlp=6, depth=1, classes=0)
    with torch.no_grad():
        model.embedding.weight.zero_()
        for channel in range(3):
            model.embedding.weight[channel, channel] = 1 / 128
        image = torch.from_numpy(np.array(photograph(PHOTOS[0], 48, 80))).permute(2, 0, 1)[None]
        means, grid = model.patches(image.float())
    assert grid == (6, 5)
    expected = regions(image, (8, 16)).double().mean(dim=(3, 4))
    torch.testing.assert_close(means[..., :3].double(), expected, atol=1e-3, rtol=0)
    assert len({tuple(row) for row in expected[0].tolist()}) == 30


def test_a_hybrids_token_stands_for_its_stride_times_its_patch() -> None:
    config = parse_name("R50+ViT-B/16", image_size=96)
    target = PatchTarget("mean", config.step, 3)
    assert target.patch == (16, 16)
    assert target(torch.zeros(1, 3, 96, 96, dtype=torch.uint8)).shape[1] == config.grid[0] * config.grid[1]
    with pytest.raises(VitreousError, match=r"image height 100 .* use 96 or 112"):
        target(torch.zeros(1, 3, 100, 96, dtype=torch.uint8))  # the trunk would pad it


# The known copy's fault, and others -------------------------------------------------------------------------------------


def test_labels_are_not_constant() -> None:
    """vit-pytorch#97: one label for everything, learnt in a few steps. Photographs have many, and no label is most of them.

    Noise would not do as a test: the mean of a noisy patch is the middle grey nearly always.
    """
    preprocess = Preprocess("resize(224)|range(-1,1)")
    images = torch.stack([preprocess(path) for path in PHOTOS])
    labels = PatchTarget("mean", (16, 16), 3)(pixel_levels(images, preprocess))
    kinds, counts = labels.unique(return_counts=True)
    assert len(kinds) > 40
    assert counts.max() < 0.3 * labels.numel()
    unscaled_labels = PatchTarget("mean", (16, 16), 3)(pixel_levels(images, Preprocess("resize(224)")))  # the fault itself
    assert len(unscaled_labels.unique()) == 1


def test_faults() -> None:
    with pytest.raises(VitreousError, match="1 or 3 channels, not 4"):
        PatchTarget("mean", (16, 16), 4)
    assert PatchTarget("pixels", (2, 2), 4).outputs == 16
    with pytest.raises(VitreousError, match=r"range\(1,1\) makes all pixels the same"):
        pixel_levels(torch.zeros(1, 3, 16, 16), Preprocess("resize(8)|range(1,1)"))
    with pytest.raises(VitreousError, match=r"image width 20 .* use 16 or 32"):
        regions(torch.zeros(1, 3, 16, 20), (16, 16))
