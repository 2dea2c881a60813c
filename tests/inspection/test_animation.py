"""The animation of attention: read back frame by frame."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.inspection.animation import animation, frames


def one_hot(layers: int = 4, grid: tuple[int, int] = (2, 4)) -> np.ndarray:
    """In layer k the k-th place alone."""
    maps = np.zeros((layers, *grid))
    for layer in range(layers):
        maps[layer].flat[layer] = 1.0
    return maps


def test_a_frame_for_each_layer_that_repeats_for_ever(tmp_path: Path) -> None:
    animation(np.full((80, 160, 3), 255, np.uint8), one_hot(), tmp_path / "attention.webp")
    with Image.open(tmp_path / "attention.webp") as found:
        assert found.format == "WEBP"
        assert found.n_frames == 4
        assert found.info["loop"] == 0
        size, durations, brightest = found.size, [], []
        for layer in range(4):
            found.seek(layer)
            found.load()
            durations.append(found.info["duration"])
            pixels = np.asarray(found.convert("RGB")).astype(int).sum(axis=2)
            right = pixels[12 : 12 + 160, 2 * 12 + 320 : 2 * 12 + 640]
            brightest.append(right.reshape(2, 80, 4, 80).mean(axis=(1, 3)).argmax())
            assert found.size == size
    assert brightest == [0, 1, 2, 3]
    assert all(333 <= duration <= 500 for duration in durations[:-1])  # two to three layers a second
    assert durations[-1] > durations[0]


def test_equal_maps_give_equal_bytes(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in "ab":
        animation(picture, one_hot(), tmp_path / f"{name}.webp")
    assert (tmp_path / "a.webp").read_bytes() == (tmp_path / "b.webp").read_bytes()


def test_the_number_of_the_layer_is_drawn() -> None:
    """Flat maps differ in nothing but the number and the bar below."""
    drawn = [np.asarray(frame) for frame in frames(np.full((64, 64, 3), 90, np.uint8), np.ones((12, 4, 4)))]
    below = 12 + 320
    for before, after in pairwise(drawn):
        np.testing.assert_array_equal(before[:below], after[:below])
        assert (before[below : below + 30] != after[below : below + 30]).any()  # the number
        assert (before[below + 34 :] != after[below + 34 :]).any()  # the bar


@pytest.mark.parametrize("size", [(8, 8), (8, 20), (600, 300), (224, 224), (1, 1)])
def test_every_size_of_picture(tmp_path: Path, size: tuple[int, int]) -> None:
    animation(np.full((*size, 3), 128, np.uint8), np.ones((1, 3, 3)), tmp_path / "one.webp")
    with Image.open(tmp_path / "one.webp") as found:
        assert max(found.size) <= 2 * 320 + 60
        assert min(found.size) > 60
        assert found.width % 2 == 0
        assert found.height % 2 == 0


@pytest.mark.parametrize(
    ("maps", "said"),
    [
        (np.full((2, 3, 3), np.nan), "not finite"),
        (np.ones((3, 3)), "expected .layers, rows, columns"),
        (np.ones((0, 3, 3)), "empty"),
    ],
)
def test_faults_are_named_and_leave_nothing(tmp_path: Path, maps: np.ndarray, said: str) -> None:
    with pytest.raises(VitreousError, match=said):
        animation(np.zeros((8, 8, 3), np.uint8), maps, tmp_path / "a.webp")
    assert not list(tmp_path.iterdir())
