from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.serving.examples import MOST, SIDE, load_examples


def opened(content: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(content))
    picture.load()
    return picture


def photographs(folder: Path, counts: dict[str, int], size: tuple[int, int] = (40, 30)) -> None:
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(folder / name / f"{index:03d}.png")


@pytest.mark.parametrize(("channels", "mode"), [(3, "RGB"), (1, "L")])
def test_there_is_always_something_to_begin_with(channels: int, mode: str) -> None:
    found = load_examples(None, channels)
    assert 6 <= len(found) <= MOST
    assert len({example.name for example in found}) == len(found)
    for example in found:
        picture = opened(example.content)
        assert picture.mode == mode
        assert example.media_type == f"image/{str(picture.format).lower()}"
        assert "/" not in example.name


def test_without_scikit_learn_scenes_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(load_examples(None, 3)) == 8
    assert len(load_examples(None, 1)) == 8


def test_a_folder_gives_images_from_all_its_classes(tmp_path: Path) -> None:
    photographs(tmp_path, {f"kind {letter}": 30 for letter in "abcdef"})
    found = load_examples(str(tmp_path), 3)
    assert len(found) == MOST
    assert {example.name[:6] for example in found} == {f"kind-{letter}" for letter in "abcdef"}


def test_the_test_split_is_preferred(tmp_path: Path) -> None:
    photographs(tmp_path / "train", {"x": 3, "y": 3})
    photographs(tmp_path / "test", {"x": 1, "y": 1}, size=(17, 19))
    assert {opened(example.content).size for example in load_examples(str(tmp_path), 3)} == {(19, 17)}


def test_images_are_made_small_and_lose_what_cameras_write(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    photo = Image.new("RGB", (3000, 2000), "red")
    data = Image.Exif()
    data[0x010F], data[0x0112] = "Secret Camera", 6  # maker; turned by a quarter
    photo.save(tmp_path / "a" / "1.jpg", exif=data)
    (tmp_path / "b").mkdir()
    photo.resize((64, 32)).save(tmp_path / "b" / "2.png")
    large, small = load_examples(str(tmp_path), 3)
    assert opened(large.content).size == (round(SIDE * 2 / 3), SIDE)  # upright
    assert b"Secret" not in large.content
    assert (small.media_type, opened(small.content).size) == ("image/png", (64, 32))


def test_broken_images_are_passed_over(tmp_path: Path) -> None:
    photographs(tmp_path, {"a": 20, "b": 20})
    for path in sorted(tmp_path.glob("*/*.png"))[::3]:
        path.write_bytes(b"no image")
    assert len(load_examples(str(tmp_path), 3)) == MOST


def test_data_without_a_image_is_an_error(tmp_path: Path) -> None:
    photographs(tmp_path, {"a": 2, "b": 2})
    for path in tmp_path.glob("*/*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(VitreousError, match="no image to show"):
        load_examples(str(tmp_path), 3)
    with pytest.raises(VitreousError, match="no such"):
        load_examples(str(tmp_path / "nowhere"), 3)
    assert load_examples(None, 4) == ()
