"""Preprocessing strings: parsed safely, printed back, and computing what Pillow and TensorFlow compute."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.image import FILTERS, PLAIN
from vitreous.data.transforms.parse import Preprocess, parse

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8))


@pytest.mark.parametrize("how", FILTERS)
def test_resize_is_pillows(how: str) -> None:
    expected = np.asarray(IMAGE.resize((20, 30), FILTERS[how]), np.float32) / 127.5 - 1
    found = Preprocess(f"resize(30,20,{how})|range(-1,1)")(IMAGE)
    np.testing.assert_allclose(found.permute(1, 2, 0).numpy(), expected, atol=1e-6)


def test_plain_bilinear_is_half_pixel_centres_without_averaging() -> None:
    """TensorFlow's default, written out: only the four nearest pixels count, however much the image shrinks."""
    pixels = np.asarray(IMAGE, np.float64)
    y, x = (np.arange(6) + 0.5) * 48 / 6 - 0.5, (np.arange(5) + 0.5) * 64 / 5 - 0.5
    y0, x0 = np.floor(y).astype(int), np.floor(x).astype(int)
    fy, fx = (y - y0)[:, None, None], (x - x0)[None, :, None]
    rows = pixels[y0] * (1 - fy) + pixels[y0 + 1] * fy
    expected = rows[:, x0] * (1 - fx) + rows[:, x0 + 1] * fx
    found = Preprocess(f"resize(6,5,{PLAIN})|range(0,255)")(IMAGE)
    np.testing.assert_allclose(found.permute(1, 2, 0).numpy(), expected, atol=1e-3)


def test_resize_small_keeps_the_shape_and_crop_takes_the_centre() -> None:
    out = Preprocess("resize_small(24)|central_crop(24)|range(0,255)")(IMAGE)
    small = np.asarray(IMAGE.resize((32, 24), Image.Resampling.BILINEAR), np.float32)[:, 4:28]
    np.testing.assert_allclose(out.permute(1, 2, 0).numpy(), small, atol=1e-4)


def test_normalise() -> None:
    out = Preprocess("normalise(imagenet)")(IMAGE)
    expected = (np.asarray(IMAGE, np.float64) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(out.permute(1, 2, 0).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "resize(224,bilinear)|range(-1,1)",
        "resize(224,320,bicubic)|normalise(imagenet)",
        "resize_small(256,box)|central_crop(224)|range(0,1)",
        "normalise(0.1,0.2,0.3,0.4,0.5,0.6)",
        f"resize(8,{PLAIN})|range(-1,1)",
    ],
)
def test_strings_come_back(text: str) -> None:
    assert str(Preprocess(text)) == text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("reisze(224)", "'resize'"),
        ("resize(224,bicubc)", "'bicubic'"),
        ("resize()", "size"),
        ("resize(0)", "at least 1"),
        ("resize(99999999)", "size"),
        ("resize(1,2,3)", "a size such as 224, or height,width"),
        ("range(1)", "2 finite numbers"),
        ("range(a,b)", "numbers"),
        ("range(nan,1)", "finite"),
        ("normalise(1,2,3)", "as many"),
        ("normalise(0,0)", "positive"),
        ("__import__('os').system('x')", "cannot read"),
        ("resize(224)||range(-1,1)", "cannot read"),
        ("", "cannot read"),
        ("central_crop(224,bicubic)", "central_crop"),
    ],
)
def test_a_wrong_string_is_explained(text: str, word: str) -> None:
    with pytest.raises(VitreousError) as caught:
        parse(text)
    assert word in str(caught.value), str(caught.value)


@given(st.text(max_size=30))
def test_no_string_does_anything_but_parse_or_fail(text: str) -> None:
    with contextlib.suppress(VitreousError):
        parse(text)


def test_another_size() -> None:
    assert str(Preprocess("resize_small(256)|central_crop(224)|range(-1,1)").at(384, 384)) == (
        "resize_small(439,bilinear)|central_crop(384)|range(-1,1)"
    )
    assert str(Preprocess("resize(224)|range(-1,1)").at(224, 320)) == "resize(224,320,bilinear)|range(-1,1)"


PADDED = [
    "resize(32)|pad(4)|range(-1,1)",
    "resize(30,20)|pad(3)|flip|pad(2)|range(-1,1)",
    "pad(4)|resize(24)|range(-1,1)",
    "pad(10)|central_crop(50,40)|range(-1,1)",
    "resize(32)|pad(4)|random_crop(32)|flip|range(-1,1)",
    "resize(40)|random_crop(32,28)|pad(3)|randaug(2,5)|range(-1,1)",
    "resize_small(32)|central_crop(32)|pad(1)|range(-1,1)",
    "inception_crop(16,24)|pad(2)|flip|normalise(imagenet)",
]


@pytest.mark.parametrize("text", PADDED)
def test_the_size_is_that_of_what_comes_out_margins_and_all(text: str) -> None:
    chain = Preprocess(text)
    assert chain.size == tuple(chain(IMAGE, random.Random(0)).shape[1:])


def test_a_margin_fixes_no_size() -> None:
    for text in ("pad(4)|range(-1,1)", "resize(32)|resize_small(24)|pad(4)|range(-1,1)"):
        assert Preprocess(text).size is None


@pytest.mark.parametrize("text", PADDED)
@pytest.mark.parametrize("size", [(44, 44), (40, 80), (77, 31), (160, 160)])
def test_another_size_is_met_to_the_pixel_with_margins_too(text: str, size: tuple[int, int]) -> None:
    made = Preprocess(text).at(*size)
    assert made.size == tuple(made(IMAGE.resize((200, 200)), random.Random(0)).shape[1:]) == size


def test_another_size_keeps_margins_in_proportion() -> None:
    assert str(Preprocess("resize(32)|pad(4)|range(-1,1)").at(80, 80)) == "resize(64,bilinear)|pad(8)|range(-1,1)"
    assert str(Preprocess("resize(32)|pad(4)|random_crop(32)").at(64, 64)) == "resize(64,bilinear)|pad(8)|random_crop(64)"
    with pytest.raises(VitreousError, match=r"pad\(4\).*in 2 x 40 pixels.*no room"):
        Preprocess("resize(32)|pad(4)|range(-1,1)").at(2, 40)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "LA", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = (
        Image.new("I;16", (8, 8), 40_000) if mode == "I;16" else IMAGE.convert("RGBA" if mode == "LA" else "RGB").convert(mode)
    )
    out = Preprocess("resize(8)|range(0,255)")(image)
    assert out.shape == (3, 8, 8)
    if mode == "I;16":  # scaled, not clipped to white
        assert torch.allclose(out, torch.full_like(out, 40_000 / 257), atol=1)


def test_see_through_parts_lie_over_white() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert torch.equal(Preprocess("range(0,255)")(image), torch.full((3, 4, 4), 255.0))


def test_orientation_is_honoured(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "x.jpg"
    image = Image.new("RGB", (40, 20), "black")
    image.paste("white", (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # shown rotated by 90 degrees clockwise
    image.save(path, exif=exif, quality=95)
    out = Preprocess("range(0,1)")(path)
    assert out.shape == (3, 40, 20)
    assert float(out[:, :18].mean()) > 0.9
    assert float(out[:, 22:].mean()) < 0.1
