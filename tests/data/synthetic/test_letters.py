"""Printed letters: what their labels say, always the same, at any size, and no digit among them."""

from __future__ import annotations

import pickle
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from sklearn.linear_model import RidgeClassifier

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.builtin import open_builtin
from vitreous.data.synthetic.letters import LETTERS, Letters


def pixels(source: Letters, count: int) -> np.ndarray:
    return np.stack([source.read(i).ravel() for i in range(count)]).astype(np.float64) / 255


def opened(options: str = "size=16&count=3000") -> dict[str, Letters]:
    return dict(open_builtin(f"letters?{options}").splits)  # type: ignore[arg-type]


def test_a_image_is_a_function_of_seed_and_index() -> None:
    train = opened()["train"]
    again = pickle.loads(pickle.dumps(train))
    for index in (2999, 0, 17):
        assert np.array_equal(train.read(index), again.read(index))
    assert not np.array_equal(train.read(0), opened("size=16&count=3000&seed=1")["train"].read(0))
    assert np.array_equal(train.read(5), opened("size=16&count=9")["train"].read(5)), "count changes no image"


def test_labels_agree_with_each_other_and_cover_every_letter() -> None:
    train = opened()["train"]
    targets = train.targets()
    assert [train.labels(i)[0] for i in range(50)] == targets[:50].tolist()
    assert np.array_equal(train.counts(), np.bincount(targets, minlength=len(LETTERS)))
    expected = len(targets) / len(LETTERS)
    assert np.all(np.abs(train.counts() - expected) < 5 * np.sqrt(expected)), "each letter as often as the others"


def test_no_split_shares_a_image_and_no_class_is_a_digit() -> None:
    splits = opened("size=16&count=200")
    seen = [{source.read(i).tobytes() for i in range(200)} for source in splits.values()]
    assert len(seen[0] | seen[1] | seen[2]) == 600
    assert not any(character.isdigit() for name in splits["train"].classes for character in name)
    assert len(set(splits["train"].classes)) == len(LETTERS) == len({name.casefold() + name for name in LETTERS})


def test_images_are_the_letters_that_their_labels_name() -> None:
    """Judged by plain drawings of the letters, which Pillow makes upright from one font: far better than chance (2.4 %)."""
    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), 64)
    drawings = []
    for letter in LETTERS:
        left, top, right, bottom = font.getbbox(letter)
        ink = Image.new("L", (int(right - left), int(bottom - top)))
        ImageDraw.Draw(ink).text((-left, -top), letter, fill=255, font=font)
        narrow = ink.width < 0.45 * ink.height
        box = Image.new("L", (64, 64))
        shape = (20 if narrow else 44, 56)
        box.paste(ink.resize(shape), ((64 - shape[0]) // 2, 4))
        drawings.append(np.asarray(box.resize((16, 16), Image.Resampling.BOX), np.float64).ravel())
    drawn = np.stack([(d - d.mean()) / d.std() for d in drawings])
    train = opened()["train"]
    seen = pixels(train, 500)
    seen = (seen - seen.mean(axis=1, keepdims=True)) / seen.std(axis=1, keepdims=True)
    named = (seen @ drawn.T).argmax(axis=1)
    assert (named == train.targets()[:500]).mean() > 0.3


def test_what_is_learnt_from_one_split_holds_on_another() -> None:
    splits = opened("size=8&count=3000")
    model = RidgeClassifier(alpha=10).fit(pixels(splits["train"], 3000), splits["train"].targets())
    assert model.score(pixels(splits["test"], 500), splits["test"].targets()[:500]) > 0.3


@pytest.mark.parametrize("size", [8, 32, 100])
def test_any_size_from_8_on(size: int) -> None:
    image = opened(f"size={size}&count=3")["train"].read(1)
    assert image.shape == (size, size)
    assert image.dtype == np.uint8
    assert image.max() > 120 > 60 > np.median(image[[0, -1]][:, [0, -1]]), "light on dark"


def test_options_are_checked() -> None:
    with pytest.raises(VitreousError, match="size=7 must be a whole number from 8"):
        open_builtin("letters?size=7")
    with pytest.raises(VitreousError, match="from 16"):
        open_builtin("shapes?size=8")
    with pytest.raises(IndexError, match="no item 3"):
        opened("count=3")["train"].read(3)
