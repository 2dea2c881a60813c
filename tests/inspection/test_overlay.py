"""The overlay against the paper's steps done one by one by Pillow and scipy, and on maps whose bright place is known."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from vitreous.core.errors import VitreousError
from vitreous.inspection.overlay import fit_image, heat, mask, overlay

GRIDS = {(14, 14): (224, 224), (7, 7): (224, 160), (3, 9): (48, 144), (1, 1): (20, 30), (1, 6): (16, 96), (4, 4): (8, 8)}
SHAPES = list(GRIDS.items())


def by_pillow(map: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Divide, Lanczos, blur: the authors' steps, on 8-bit images; from 0, not stretched yet."""
    rows, columns = map.shape
    small = Image.fromarray(np.rint(255 * map / map.max()).astype(np.uint8))
    large = small.resize((width, height), Image.Resampling.LANCZOS)
    blurred = np.asarray(large.filter(ImageFilter.GaussianBlur((width / columns, height / rows))), np.float64)
    return blurred - blurred.min()


@pytest.mark.parametrize(("grid", "size"), [pair for pair in SHAPES if pair[0] != (1, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_the_steps_of_the_paper(grid: tuple[int, int], size: tuple[int, int], seed: int) -> None:
    """Within three levels of theirs, which are rounded eight times on the way."""
    map = np.random.default_rng(seed).random(grid) ** 4
    expected = by_pillow(map, *size)
    assert np.abs(mask(map, *size) * expected.max() - expected).max() < 3


def test_the_blur_has_the_deviation_of_one_patch() -> None:
    """Far from the border, variances add: that of the enlarged place and that of the blur, 16 pixels squared."""
    map = np.zeros((21, 15))
    map[10, 7] = 1.0

    def variance(weights: NDArray[np.float64]) -> float:
        places = np.arange(len(weights))
        return float(np.average((places - np.average(places, weights=weights)) ** 2, weights=weights))

    found = mask(map, 420, 240)
    for line, blurred, sigma in ((map[:, 7], found.sum(axis=1), 20), (map[10], found.sum(axis=0), 16)):
        image = Image.fromarray(line[None].astype(np.float32)).resize((len(blurred), 1), Image.Resampling.LANCZOS)
        large = np.asarray(image, np.float64)[0].clip(0, 1)
        assert variance(blurred) == pytest.approx(variance(large) + sigma**2, rel=1e-6)


def test_a_nearly_even_map_has_no_steps() -> None:
    """In 8 bits it would have five levels."""
    map = 0.98 + 0.02 * np.random.default_rng(0).random((14, 14))
    assert len(np.unique(by_pillow(map, 224, 224))) < 6
    assert np.abs(np.diff(mask(map, 224, 224), axis=1)).max() < 0.05


@pytest.mark.parametrize(("grid", "size"), SHAPES)
def test_the_overlay_is_the_picture_times_the_mask(grid: tuple[int, int], size: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    picture, map = rng.integers(0, 256, (*size, 3), dtype=np.uint8), rng.random(grid)
    found = overlay(picture, map)
    assert found.dtype == np.uint8
    assert found.shape == picture.shape
    np.testing.assert_array_equal(found, np.rint(picture * mask(map, *size)[..., None]).astype(np.uint8))


@pytest.mark.parametrize("place", [(0, 0), (0, 11), (4, 5), (7, 11), (7, 0)])
def test_a_single_place_is_bright_where_it_lies(place: tuple[int, int]) -> None:
    map = np.zeros((8, 12))
    map[place] = 0.3
    found = overlay(np.full((64, 96, 3), 200, np.uint8), map)[..., 0]
    row, column = np.unravel_index(int(found.argmax()), found.shape)
    assert (row // 8, column // 8) == place
    assert found.max() == 200
    far = found[:: -1 if place[0] < 4 else 1, :: -1 if place[1] < 6 else 1][0, 0]
    assert far == 0


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-30, -2.0, 1 / 3])
def test_a_flat_map_darkens_nothing(value: float) -> None:
    picture = np.random.default_rng(3).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    np.testing.assert_array_equal(overlay(picture, np.full((4, 4), value)), picture)
    wavering = np.full((4, 4), value) * (1 + 1e-12 * np.random.default_rng(4).random((4, 4)))
    np.testing.assert_array_equal(overlay(picture, wavering), picture)


def test_only_the_pattern_counts_not_its_size() -> None:
    map = np.random.default_rng(5).random((6, 6))
    for factor in (1e-20, 7.0, 1e20):
        np.testing.assert_allclose(mask(factor * map, 48, 48), mask(map, 48, 48), atol=1e-9)


def test_more_places_than_pixels() -> None:
    found = mask(np.random.default_rng(6).random((37, 37)), 8, 8)
    assert found.min() == 0
    assert found.max() == 1


def test_grey_pictures() -> None:
    grey = np.random.default_rng(7).integers(0, 256, (16, 16), dtype=np.uint8)
    map = np.random.default_rng(8).random((4, 4))
    expected = overlay(np.stack([grey] * 3, axis=2), map)
    np.testing.assert_array_equal(overlay(grey, map), expected)
    np.testing.assert_array_equal(overlay(grey[..., None], map), expected)


@pytest.mark.parametrize(
    ("picture", "map", "said"),
    [
        (np.zeros((8, 8, 3), np.uint8), np.full((2, 2), np.nan), "4 of 4 values are not finite"),
        (np.zeros((8, 8, 3), np.uint8), np.array([[1.0, np.inf]]), "1 of 2 values are not finite"),
        (np.zeros((8, 8, 3), np.uint8), np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (np.zeros((8, 8, 3), np.uint8), np.zeros((0, 2)), "none of them empty"),
        (np.zeros((8, 8, 3), np.float32), np.ones((2, 2)), "float32"),
        (np.zeros((8, 8, 4), np.uint8), np.ones((2, 2)), r"\(8, 8, 4\)"),
        (np.zeros((0, 8, 3), np.uint8), np.ones((2, 2)), r"\(0, 8, 3\)"),
    ],
)
def test_what_cannot_be_drawn_is_named(picture: NDArray[np.uint8], map: NDArray[np.float64], said: str) -> None:
    with pytest.raises(VitreousError, match=said):
        overlay(picture, map)


def test_heat_goes_from_nothing_to_the_most() -> None:
    colours = (np.array(matplotlib.colormaps["magma"].colors) * 255).round()  # type: ignore[attr-defined]
    found = heat(np.array([[0.0, 0.25], [0.5, 1.0]]) * 1e-3)
    assert np.abs(found[0, 0] - colours[0]).max() <= 1
    assert np.abs(found[1, 1] - colours[-1]).max() <= 1
    assert np.abs(found[1, 0] - colours[128]).max() <= 2
    brightness = found.astype(int).sum(axis=2)
    assert brightness[0, 0] < brightness[0, 1] < brightness[1, 0] < brightness[1, 1]


def test_heat_begins_at_zero_and_flat_maps_have_one_colour() -> None:
    """Attention that is nearly even is to look even: 0.9 of the most is bright."""
    assert heat(np.array([[0.9, 1.0]]))[0, 0].sum() > 500
    assert len(np.unique(heat(np.full((3, 3), 0.2)).reshape(-1, 3), axis=0)) == 1
    assert heat(np.full((3, 3), 0.2)).sum() > heat(np.zeros((3, 3))).sum()
    below = heat(np.array([[-1.0, 1.0]]))
    np.testing.assert_array_equal(below[0], heat(np.array([[0.0, 1.0]]))[0])


def test_a_tiny_picture_is_enlarged_without_blur() -> None:
    tiny = np.random.default_rng(9).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    found = fit_image(tiny, 100, 100)
    np.testing.assert_array_equal(found, np.kron(tiny, np.ones((12, 12, 1), np.uint8)))


@pytest.mark.parametrize(
    ("size", "room", "expected"),
    [
        ((480, 640), (300, 300), (225, 300)),
        ((640, 480), (300, 300), (300, 225)),
        ((100, 80), (200, 200), (200, 160)),
        ((5000, 3), (200, 200), (200, 1)),
        ((40, 40), (30, 30), (30, 30)),
    ],
)
def test_others_fit_in_their_own_shape(size: tuple[int, int], room: tuple[int, int], expected: tuple[int, int]) -> None:
    assert fit_image(np.zeros((*size, 3), np.uint8), *room).shape == (*expected, 3)
