"""RandAugment: each operation against another implementation, its arguments and draws against what they should be.

The checksums are of what TensorFlow 2.12.1 with TensorFlow Addons 0.23.0 makes of `PATTERN`, for the operations whose
arithmetic is fixed to the last bit. Colour, sharpness and geometry round in ways that differ between builds of the same
library, so they are compared with SciPy and Pillow, with the tolerance stated.
"""

from __future__ import annotations

import math
import random
import zlib
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage, stats

from vitreous.core.errors import VitreousError
from vitreous.data.transforms import randaugment as module
from vitreous.data.transforms.randaugment import OPERATIONS, Operation, check_randaugment, randaugment

_y, _x, _c = np.ogrid[:48, :64, :3]
PATTERN = ((_y * _y * 3 + _x * 7 + _c * 50 + _x * _y) // 3 % 200 + 20 + _c * 5).astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (97, 131, 3), dtype=np.uint8)
MAGNITUDES = (0, 3, 10, 15, 20, 25, 31)
FACTORS = (0.1, 0.64, 1.0, 1.9, 3.7)

TENSORFLOW = {
    "Invert": (0x5337C8AB,) * 7,
    "AutoContrast": (0x3AC149D1,) * 7,
    "Equalize": (0xC3FBEB88,) * 7,
    "Posterize": (0x1FF14E68, 0x1FF14E68, 0x5CC12AC8, 0x8AAE58DA, 0xA7D18AFF, 0x1FF14E68, 0x1FF14E68),
    "Solarize": (0x5337C8AB, 0x5285AE29, 0x5337C8AB, 0x0E293F8B, 0x5337C8AB, 0x0E293F8B, 0xA9F6CB0B),
    "Contrast": (0x7C736357, 0x1CF07A63, 0x618ED225, 0x0F6B1599, 0x10F687FB, 0x6890E2C8, 0xF39295D7),
    "Brightness": (0x375B8FB9, 0x150F3D4E, 0xBB73BA8A, 0x3FEE55DE, 0xF0877D52, 0x9097C76E, 0x344DD1A1),
    "SolarizeAdd": (0xA7D18AFF, 0x40EF1131, 0x9812E9D5, 0x52AA25E4, 0x6E53B8F8, 0x3A2F011B, 0x3A2F011B),
    "TranslateX": (0xA7D18AFF, 0x277AC39F, *(0xB87C7F0B,) * 5),
    "-TranslateY": (0xA7D18AFF, 0xFCD55DA2, *(0xB87C7F0B,) * 5),
}

ARGUMENTS = {  # at magnitude 0, 5, 10, 15, 20, 31
    "AutoContrast": (0, 0, 0, 0, 0, 0),
    "Equalize": (0, 0, 0, 0, 0, 0),
    "Invert": (0, 0, 0, 0, 0, 0),
    "Rotate": (0, 15, 30, 45, 60, 93),
    "Posterize": (0, 2, 4, 6, 8, 12),
    "Solarize": (0, 128, 256, 384, 512, 793),
    "Color": (0.1, 1.0, 1.9, 2.8, 3.7, 5.68),
    "Contrast": (0.1, 1.0, 1.9, 2.8, 3.7, 5.68),
    "Brightness": (0.1, 1.0, 1.9, 2.8, 3.7, 5.68),
    "Sharpness": (0.1, 1.0, 1.9, 2.8, 3.7, 5.68),
    "ShearX": (0, 0.15, 0.3, 0.45, 0.6, 0.93),
    "ShearY": (0, 0.15, 0.3, 0.45, 0.6, 0.93),
    "TranslateX": (0, 50, 100, 150, 200, 310),
    "TranslateY": (0, 50, 100, 150, 200, 310),
    "Cutout": (0, 20, 40, 60, 80, 124),
    "SolarizeAdd": (0, 55, 110, 165, 220, 341),
}
EITHER_WAY = {"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"}


def applied(name: str, argument: float, pixels: NDArray[np.uint8] = NOISE) -> NDArray[np.int64]:
    return np.asarray(OPERATIONS[name].apply(Image.fromarray(pixels), argument, random.Random(0))).astype(np.int64)


@pytest.mark.parametrize("name", TENSORFLOW)
def test_pixels_are_tensorflows(name: str) -> None:
    assert zlib.crc32(PATTERN.tobytes()) == 0xA7D18AFF
    operation, sign = OPERATIONS[name.lstrip("-")], -1 if name.startswith("-") else 1
    made = [applied(name.lstrip("-"), sign * operation.argument(m / 10), PATTERN).astype(np.uint8) for m in MAGNITUDES]
    assert [f"{zlib.crc32(pixels.tobytes()):08x}" for pixels in made] == [f"{known:08x}" for known in TENSORFLOW[name]]


def test_arguments() -> None:
    assert list(OPERATIONS) == list(ARGUMENTS)
    for name, expected in ARGUMENTS.items():
        found = [OPERATIONS[name].argument(magnitude / 10) for magnitude in (0, 5, 10, 15, 20, 31)]
        assert found == pytest.approx(expected, abs=1e-9), name
        assert OPERATIONS[name].either_way == (name in EITHER_WAY)


def test_auto_contrast_and_equalize_are_torchvisions() -> None:
    from torchvision.transforms import functional

    narrow = (NOISE // 2 + 30).astype(np.uint8)
    as_tensor = torch.from_numpy(narrow).permute(2, 0, 1)
    contrast = functional.autocontrast(as_tensor).permute(1, 2, 0).numpy().astype(int)
    assert np.abs(applied("AutoContrast", 0, narrow) - contrast).max() <= 1  # it divides first
    equal = functional.equalize(as_tensor).permute(1, 2, 0).numpy().astype(int)
    np.testing.assert_array_equal(applied("Equalize", 0, narrow), equal)


@pytest.mark.parametrize("name", ["AutoContrast", "Equalize"])
def test_a_image_of_one_colour_has_no_contrast_to_spread(name: str) -> None:
    flat = np.full((20, 30, 3), (7, 0, 255), np.uint8)
    np.testing.assert_array_equal(applied(name, 0, flat), flat)


@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_is_pillows(bits: int) -> None:
    np.testing.assert_array_equal(applied("Posterize", bits), np.asarray(ImageOps.posterize(Image.fromarray(NOISE), bits)))


@pytest.mark.parametrize("bits", [0, 9, 12])
def test_impossible_bits_leave_one(bits: int) -> None:
    np.testing.assert_array_equal(applied("Posterize", bits), np.where(NOISE < 128, 0, 128))


@pytest.mark.parametrize(("threshold", "meant"), [(0, 0), (76, 76), (128, 128), (256, 0), (384, 128), (512, 0)])
def test_solarize_is_pillows_with_a_threshold_that_wraps(threshold: int, meant: int) -> None:
    expected = ImageOps.solarize(Image.fromarray(NOISE), meant)
    np.testing.assert_array_equal(applied("Solarize", threshold), np.asarray(expected))


@pytest.mark.parametrize("addition", [0, 33, 110, 220, 341])
def test_solarize_add_is_timms(addition: int) -> None:
    from timm.data.auto_augment import solarize_add

    expected = solarize_add(Image.fromarray(NOISE), min(addition, 255))  # timm's table must hold bytes
    np.testing.assert_array_equal(applied("SolarizeAdd", addition), np.asarray(expected))


@pytest.mark.parametrize("factor", FACTORS)
def test_brightness_is_pillows(factor: float) -> None:
    expected = np.asarray(ImageEnhance.Brightness(Image.fromarray(NOISE)).enhance(factor))
    np.testing.assert_array_equal(applied("Brightness", factor), expected)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(("size", "centre"), [((224, 224), 196), ((250, 250), 244), ((256, 256), 255), ((300, 400), 255)])
def test_contrast_scales_around_the_number_of_pixels(factor: float, size: tuple[int, int], centre: int) -> None:
    image = Image.fromarray(NOISE).resize(size, Image.Resampling.NEAREST)
    expected = Image.blend(Image.new("RGB", size, (centre,) * 3), image, factor)
    np.testing.assert_array_equal(applied("Contrast", factor, np.asarray(image)), np.asarray(expected))


@pytest.mark.parametrize("factor", FACTORS)
def test_color_is_nearly_pillows(factor: float) -> None:
    """TensorFlow's grey may be one off Pillow's, which a factor scales by |1 - factor|; the cut adds at most one."""
    expected = np.asarray(ImageEnhance.Color(Image.fromarray(NOISE)).enhance(factor)).astype(int)
    difference = np.abs(applied("Color", factor) - expected)
    assert difference.max() <= math.ceil(abs(1 - factor)) + 1
    grey = (NOISE / 255) @ np.array([0.2989, 0.5870, 0.1140]) * 255.5  # of TensorFlow, before the cut
    exact = np.clip(np.floor(grey)[:, :, None] * (1 - factor) + NOISE * factor, 0, 255)
    assert np.mean(np.abs(applied("Color", factor) - np.floor(exact + 1e-4)) > 0) < 0.001


@pytest.mark.parametrize("factor", FACTORS)
def test_sharpness_blends_with_a_floored_mean(factor: float) -> None:
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]])[:, :, None]
    blurred = ndimage.correlate(NOISE.astype(int), kernel) // 13
    blurred[[0, -1]], blurred[:, [0, -1]] = NOISE[[0, -1]], NOISE[:, [0, -1]]
    expected = Image.blend(Image.fromarray(blurred.astype(np.uint8)), Image.fromarray(NOISE), factor)
    np.testing.assert_array_equal(applied("Sharpness", factor), np.asarray(expected))
    pillows = np.asarray(ImageEnhance.Sharpness(Image.fromarray(NOISE)).enhance(factor)).astype(int)
    assert np.abs(applied("Sharpness", factor) - pillows).max() <= math.ceil(abs(1 - factor)) + 1  # it rounds the mean


def moved_by_scipy(matrix: list[list[float]], offset: tuple[float, float]) -> NDArray[np.int64]:
    """Nearest neighbours, grey outside; matrix and offset for (row, column). Far edges as TensorFlow has them."""
    rows, columns = np.indices(NOISE.shape[:2])
    y = matrix[0][0] * rows + matrix[0][1] * columns + offset[0]
    x = matrix[1][0] * rows + matrix[1][1] * columns + offset[1]
    sampled = [ndimage.map_coordinates(NOISE[:, :, c], [y, x], order=0, mode="nearest") for c in range(3)]
    inside = (y > -0.5) & (y < NOISE.shape[0] - 0.5) & (x > -0.5) & (x < NOISE.shape[1] - 0.5)
    return np.where(inside[:, :, None], np.stack(sampled, 2), 128).astype(np.int64)


def share_of_other_pixels(found: NDArray[np.int64], expected: NDArray[np.int64]) -> float:
    return float((found != expected).any(2).mean())


@pytest.mark.parametrize("degrees", [0, 6, -6, 30, -30, 45, 60, 93])
def test_rotate_is_scipys(degrees: float) -> None:
    """A few pixels lie so close to the middle of two that Pillow's fixed point, of 1/65536, decides otherwise."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    centre = (np.array(NOISE.shape[:2]) - 1) / 2
    matrix = np.array([[cos, sin], [-sin, cos]])
    expected = moved_by_scipy(matrix.tolist(), tuple(centre - matrix @ centre))
    assert share_of_other_pixels(applied("Rotate", degrees), expected) <= 0.005


@pytest.mark.parametrize("slope", [0, 0.09, 0.21, 0.3, 0.45, 0.6, 0.93])
@pytest.mark.parametrize("sign", [1, -1])
def test_shear_is_scipys(slope: float, sign: int) -> None:
    """The nudge moves a tie by less than 1/500 pixel; SciPy, which rounds it by float error, gets the same nudge."""
    slope, nudge = sign * slope, 0.001
    x = moved_by_scipy([[1, 0], [slope, 1]], (0, nudge))
    y = moved_by_scipy([[1, slope], [0, 1]], (nudge, 0))
    assert share_of_other_pixels(applied("ShearX", slope), x) <= 0.005
    assert share_of_other_pixels(applied("ShearY", slope), y) <= 0.005


@pytest.mark.parametrize("pixels", [0, 1, 30, 96, 97, 500])
def test_translate_fills_with_grey(pixels: int) -> None:
    height, width = NOISE.shape[:2]
    right, left, down, up = (np.full(NOISE.shape, 128) for _ in range(4))
    left[:, : max(0, width - pixels)], right[:, pixels:] = NOISE[:, pixels:], NOISE[:, : max(0, width - pixels)]
    up[: max(0, height - pixels)], down[pixels:] = NOISE[pixels:], NOISE[: max(0, height - pixels)]
    for name, argument, expected in (("X", pixels, left), ("X", -pixels, right), ("Y", pixels, up), ("Y", -pixels, down)):
        np.testing.assert_array_equal(applied(f"Translate{name}", argument), expected)


def test_cutout_is_a_grey_square_anywhere() -> None:
    rng, image = random.Random(0), Image.new("RGB", (60, 40))
    centres = Counter[tuple[bool, bool]]()
    sizes = set()
    for _ in range(2000):
        cut = np.asarray(OPERATIONS["Cutout"].apply(image, 5, rng))
        assert set(np.unique(cut)) <= {0, 128}
        rows, columns = np.nonzero(cut[:, :, 0])
        assert len(rows) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)  # a rectangle without holes
        sizes.add((int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1))
        centres[bool(rows.max() < 25), bool(columns.max() < 35)] += 1  # rows up to y + 4: y < 21, x < 31
    heights, widths = zip(*sizes, strict=True)
    assert set(heights) == set(widths) == {5, 6, 7, 8, 9, 10}  # twice the reach, of which an edge takes up to a half
    cells = [(21 if y else 19) * (31 if x else 29) / 2400 for y, x in centres]
    assert stats.chisquare(list(centres.values()), np.array(cells) * 2000).pvalue > 0.001


def recorders(seen: list[tuple[str, float]]) -> dict[str, Operation]:
    """The same table, but the operations only say that they were called."""

    def recorder(name: str, operation: Operation) -> Operation:
        def record(image: Image.Image, argument: float, rng: random.Random) -> Image.Image:
            seen.append((name, argument))
            return image

        return Operation(record, operation.argument, operation.either_way)

    return {name: recorder(name, operation) for name, operation in OPERATIONS.items()}


def test_operations_are_drawn_evenly_and_signs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float]] = []
    monkeypatch.setattr(module, "OPERATIONS", recorders(seen))
    rng, image = random.Random(0), Image.new("L", (1, 1))
    for _ in range(8000):
        randaugment(image, 2, 10, rng)
    assert len(seen) == 16000
    names = Counter(name for name, _ in seen)
    assert set(names) == set(ARGUMENTS)
    assert stats.chisquare(list(names.values())).pvalue > 0.001
    pairs = Counter(zip((name for name, _ in seen[::2]), (name for name, _ in seen[1::2]), strict=True))
    assert len(pairs) == 256  # the layers are drawn independently
    assert stats.chisquare(list(pairs.values())).pvalue > 0.001
    for name, known in ARGUMENTS.items():
        found = Counter(argument for drawn, argument in seen if drawn == name)
        assert all(abs(argument) == pytest.approx(known[2]) for argument in found), name
        assert len(found) == (2 if name in EITHER_WAY else 1), name
        if name in EITHER_WAY:
            assert stats.binomtest(found[max(found)], sum(found.values())).pvalue > 0.001
    signs = Counter(argument < 0 for name, argument in seen if name in EITHER_WAY)
    assert stats.binomtest(signs[True], signs.total()).pvalue > 0.001


class OnlyRandom(random.Random):
    """Fails where whole numbers or members are drawn (randrange, choice, shuffle), which Python may do differently one day."""

    def getrandbits(self, k: int) -> int:
        raise AssertionError("only random() is the same in every version of Python")


def test_the_generator_decides_everything() -> None:
    image = Image.fromarray(NOISE)
    first = [np.asarray(randaugment(image, 2, 10, random.Random(seed))) for seed in range(40)]
    again = [np.asarray(randaugment(image, 2, 10, OnlyRandom(seed))) for seed in range(40)]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len({pixels.tobytes() for pixels in first}) > 30
    np.testing.assert_array_equal(np.asarray(image), NOISE)  # nobody painted on the original


def test_the_draws_are_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written down, because a run is only repeatable if another version of Python draws the same."""
    seen: list[tuple[str, float]] = []
    monkeypatch.setattr(module, "OPERATIONS", recorders(seen))
    randaugment(Image.new("L", (1, 1)), 6, 10, random.Random(2020))
    assert [name for name, _ in seen] == ["Sharpness", "Invert", "TranslateX", "Contrast", "Cutout", "Brightness"]


def test_no_layers_change_nothing() -> None:
    np.testing.assert_array_equal(np.asarray(randaugment(Image.fromarray(NOISE), 0, 10, random.Random(0))), NOISE)


@pytest.mark.parametrize("magnitude", [0, 7, 10, 15, 31])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_grey_is_colour_with_equal_channels(name: str, magnitude: float) -> None:
    grey = Image.fromarray(NOISE[:, :, 0])
    operation = OPERATIONS[name]
    argument = operation.argument(magnitude / 10)
    found = operation.apply(grey, argument, random.Random(1))
    colour = operation.apply(grey.convert("RGB"), argument, random.Random(1))
    assert found.mode == "L"
    for band in colour.split():
        np.testing.assert_array_equal(np.asarray(found), np.asarray(band))


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(["RGB", "L"]),
    st.integers(0, 4),
    st.one_of(st.sampled_from([0.0, 10.0, 31.0, 100.0]), st.floats(0, 100)),
    st.integers(0, 2**32),
)
def test_size_and_mode_stay(width: int, height: int, mode: str, layers: int, magnitude: float, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    found = randaugment(Image.fromarray(pixels).convert(mode), layers, magnitude, random.Random(seed))
    assert (found.size, found.mode) == ((width, height), mode)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (2, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_tiny_images(name: str, size: tuple[int, int]) -> None:
    for mode in ("RGB", "L"):
        for magnitude in (0, 10, 31):
            image = Image.new(mode, size, "white")
            found = OPERATIONS[name].apply(image, OPERATIONS[name].argument(magnitude / 10), random.Random(0))
            assert (found.size, found.mode) == (size, mode)


@pytest.mark.parametrize(("layers", "magnitude"), [(-1, 10), (2, -1), (2, math.nan), (2, math.inf), (2, 101)])
def test_wrong_numbers_are_named(layers: int, magnitude: float) -> None:
    with pytest.raises(VitreousError, match=r"^randaug\(.*as randaug\(2,10\)$"):
        check_randaugment(layers, magnitude)
    with pytest.raises(VitreousError, match="randaug"):
        randaugment(Image.new("RGB", (4, 4)), layers, magnitude, random.Random(0))


@pytest.mark.parametrize("mode", ["RGBA", "P", "F", "1", "CMYK"])
def test_other_modes_are_refused(mode: str) -> None:
    with pytest.raises(VitreousError, match=f"mode {mode}; decode"):
        randaugment(Image.new(mode, (4, 4)), 2, 10, random.Random(0))
