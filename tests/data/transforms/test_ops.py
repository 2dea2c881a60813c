from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from sample_images import encoded, photo
from scipy import stats

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.image import to_bytes
from vitreous.data.transforms.ops import InceptionCrop, Normalise, RandomCrop, Range, ResizeSmall
from vitreous.data.transforms.parse import Preprocess, parse

TRAINING = "inception_crop(224)|flip|range(-1,1)"


# Strings --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "inception_crop(224,bilinear)|flip|range(-1,1)",
        "inception_crop(224,192,bilinear-plain,area=0.2:0.9)|flip|randaug(2,15)|normalise(imagenet)",
        "resize(448,bicubic)|random_crop(384)|flip|range(-1,1)",
        "resize_small(448,bilinear)|random_crop(384,320)|flip|randaug(2,0)|range(0,1)",
    ],
)
def test_strings_there_and_back(text: str) -> None:
    assert str(Preprocess(text)) == text
    assert Preprocess(text).random
    assert Preprocess(text).eight_bit


def test_numbers_are_written_as_they_are() -> None:
    for text in ("range(-2.11790393,2.64)", "inception_crop(8,bilinear,area=0.123456789:0.9)", "randaug(2,10.12345678)"):
        assert str(Preprocess(text)) == text


def test_the_papers_string_means_the_papers_crop() -> None:
    crop = parse(TRAINING)[0]
    assert crop == InceptionCrop(224, 224, 0.05, 1.0, "bilinear")
    assert Preprocess(TRAINING).size == (224, 224)
    assert str(Preprocess(TRAINING).at(384, 320)) == "inception_crop(384,320,bilinear)|flip|range(-1,1)"
    assert str(Preprocess("resize(448)|random_crop(384)").at(192, 192)) == "resize(224,bilinear)|random_crop(192)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inception_crop()", "needs a size"),
        ("inception_crop(1,2,3)", "a size such as 224, or height,width"),
        ("inception_crop(224,area=0.5)", "area=0.05:1"),
        ("inception_crop(224,area=0.9:0.5)", "the smaller first"),
        ("inception_crop(224,area=0:1)", "two shares"),
        ("inception_crop(224,area=0.1:1,area=0.1:1)", "'area=0.1:1' is one too many"),
        ("inception_crop(224,bilinaer)", "did you mean 'bilinear'"),
        ("flip(2)", "'2' is one too many"),
        ("flop", "did you mean 'flip'"),
        ("random_crop(a)", "needs a size"),
        ("randaug(2)", "takes 2"),
        ("randaug(1.5,10)", "whole number of layers"),
        ("randaug(2,101)", "a magnitude in 0..100"),
        ("flip|__import__('os')", "unknown preprocessing op '__import__'"),
        ("flip|a.b(1)", "cannot read 'a.b(1)'"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(VitreousError) as error:
        parse(text)
    assert message in str(error.value)


def test_chance_needs_random_numbers() -> None:
    with pytest.raises(VitreousError, match="is random, which is for training"):
        Preprocess(TRAINING)(photo())
    with pytest.raises(VitreousError, match="must come before range"):
        Preprocess("range(0,1)|randaug(2,10)|range(0,1)").transform(photo(), random.Random(0))
    for op in ("randaug(2,10)", "pad(4)"):
        with pytest.raises(VitreousError, match="must come before range, normalise and bilinear-plain resizes"):
            Preprocess(f"resize(16,bilinear-plain)|{op}|range(0,1)").transform(photo(), random.Random(0))


def test_a_crop_that_does_not_fit() -> None:
    with pytest.raises(VitreousError, match=r"random_crop\(100\) does not fit into an image of 60 x 80; put a resize"):
        Preprocess("random_crop(100)").transform(photo(60, 80), random.Random(0))


# Geometry, against Pillow ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["bilinear", "bicubic", "lanczos"])
def test_inception_crop_is_a_crop_and_a_resize(how: str) -> None:
    image = photo(90, 120)
    for seed in range(20):
        top, left, height, width = InceptionCrop(32, 48).box(90, 120, random.Random(seed))
        found = Preprocess(f"inception_crop(32,48,{how})").transform(image, random.Random(seed))
        part = image.crop((left, top, left + width, top + height))
        expected = part.resize((48, 32), getattr(Image.Resampling, how.upper()))
        assert np.array_equal(to_bytes(found), np.asarray(expected))


def test_plain_crop_loses_its_fraction_as_the_authors_does() -> None:
    image = photo(90, 120)
    for seed in range(5):
        top, left, height, width = InceptionCrop(32, 32).box(90, 120, random.Random(seed))
        found = to_bytes(Preprocess("inception_crop(32,bilinear-plain)").transform(image, random.Random(seed)))
        part = np.asarray(image)[top : top + height, left : left + width].astype(float)
        rows = ((np.arange(32) + 0.5) * height / 32 - 0.5).clip(0, height - 1)
        columns = ((np.arange(32) + 0.5) * width / 32 - 0.5).clip(0, width - 1)
        y, x = rows.astype(int), columns.astype(int)
        y1, x1 = np.minimum(y + 1, height - 1), np.minimum(x + 1, width - 1)
        fy, fx = (rows - y)[:, None, None], (columns - x)[None, :, None]
        upper = part[y][:, x] * (1 - fx) + part[y][:, x1] * fx
        lower = part[y1][:, x] * (1 - fx) + part[y1][:, x1] * fx
        expected = upper * (1 - fy) + lower * fy
        assert (np.abs(found - np.floor(expected + 1e-4)) > 0).mean() < 0.001
        assert np.abs(found - expected).max() < 1.001


def test_random_crop_and_flip_move_pixels_only() -> None:
    image = photo(50, 70)
    array = np.asarray(image)
    seen = set()
    for seed in range(40):
        found = to_bytes(Preprocess("random_crop(48)|flip").transform(image, random.Random(seed)))
        places = [
            (top, left, mirrored)
            for top in range(3)
            for left in range(23)
            for mirrored in (False, True)
            if np.array_equal(found, array[top : top + 48, left : left + 48][:, :: -1 if mirrored else 1])
        ]
        assert len(places) == 1
        seen.add(places[0][2])
    assert seen == {False, True}


# Statistics -----------------------------------------------------------------------------------------------------------


def reference_boxes(height: int, width: int, count: int) -> np.ndarray:
    """TensorFlow's way of drawing, told again in whole arrays: ratio uniform, height uniform among those that fit."""
    rng = np.random.default_rng(1)
    found = np.empty((0, 4), int)
    while len(found) < count:
        ratio = rng.uniform(0.75, 1.33, count)
        least, most = 0.05 * height * width, 1.0 * height * width
        low = np.rint(np.sqrt(least / ratio))
        high = np.minimum(np.minimum(np.rint(np.sqrt(most / ratio)), height), np.floor((width + 0.5 - 1e-7) / ratio))
        tall = low + np.floor(rng.random(count) * (np.maximum(high - low, 0) + 1))
        tall = np.minimum(tall, high)
        wide = np.rint(tall * ratio)
        good = (tall * wide >= least) & (tall * wide <= most) & (wide <= width) & (tall <= height)
        top = np.floor(rng.random(count) * np.maximum(height - tall, 1))
        left = np.floor(rng.random(count) * np.maximum(width - wide, 1))
        found = np.concatenate([found, np.stack([top, left, tall, wide], 1)[good].astype(int)])
    return found[:count]


@pytest.mark.parametrize(("height", "width"), [(300, 400), (711, 400), (224, 224)])
def test_inception_crop_is_distributed_as_tensorflows(height: int, width: int) -> None:
    rng = random.Random(0)
    boxes = np.array([InceptionCrop(224, 224).box(height, width, rng) for _ in range(6000)])
    expected = reference_boxes(height, width, 60_000)
    for column, name in enumerate(("top", "left", "height", "width")):
        assert stats.ks_2samp(boxes[:, column], expected[:, column]).pvalue > 1e-3, name
    area = boxes[:, 2] * boxes[:, 3] / (height * width)
    assert stats.ks_2samp(area, expected[:, 2] * expected[:, 3] / (height * width)).pvalue > 1e-3
    assert area.min() >= 0.05
    assert area.max() <= 1.0
    ratio = boxes[:, 3] / boxes[:, 2]
    assert ratio.min() > 0.73
    assert ratio.max() < 1.36
    uniform_area = np.random.default_rng(0).uniform(0.05, 1, 60_000)  # torchvision's way
    assert stats.ks_2samp(area, uniform_area).pvalue < 1e-6


def test_inception_crop_of_very_long_and_very_small_images() -> None:
    rng = random.Random(0)
    assert InceptionCrop(8, 8).box(10, 1000, rng) == (0, 0, 10, 1000), "no part has both the area and the shape"
    for height, width in ((1, 1), (1, 2), (3, 1), (2, 2), (5, 4)):
        for _ in range(50):
            top, left, tall, wide = InceptionCrop(8, 8).box(height, width, rng)
            assert 0 <= top <= top + tall <= height
            assert 0 <= left <= left + wide <= width
            assert tall * wide >= 1
    assert Preprocess("inception_crop(8)|flip|range(-1,1)")(np.zeros((1, 1), np.uint8), rng).shape == (3, 8, 8)


def test_random_crop_goes_everywhere_alike() -> None:
    rng = random.Random(0)
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)[:, :, None].repeat(3, axis=2)
    first = [int(to_bytes(RandomCrop(2, 2)(image, rng))[0, 0, 0]) for _ in range(6000)]
    counts = np.bincount(first, minlength=12)
    allowed = [0, 1, 2, 4, 5, 6]
    assert counts.sum() == counts[allowed].sum()
    assert stats.chisquare(counts[allowed]).pvalue > 1e-3


def test_flip_is_fair() -> None:
    image = photo(4, 5)
    array = np.asarray(image)
    rng = random.Random(0)
    kept = sum(np.array_equal(to_bytes(parse("flip")[0](image, rng)), array) for _ in range(2000))
    assert stats.binomtest(kept, 2000).pvalue > 1e-3


# Scaling --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op", [Range(-1, 1), Range(0, 1), Range(-2.1, 3.3), Normalise(), Normalise((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))]
)
def test_scales_give_torchs_bits_and_can_be_undone(op: Range | Normalise) -> None:
    pixels = torch.arange(256).float().repeat(3, 1)[:, None]
    if isinstance(op, Range):
        expected = pixels * ((op.high - op.low) / 255.0) + op.low
    else:
        expected = (pixels / 255.0 - torch.tensor(op.mean)[:, None, None]) / torch.tensor(op.std)[:, None, None]
    before = pixels.clone()
    assert torch.equal(op(pixels), expected)
    assert torch.equal(op(pixels[None]), expected[None])
    assert torch.equal(pixels, before)
    torch.testing.assert_close(op.undo(expected), pixels, atol=1e-3, rtol=0)


def test_quick_and_exact_are_alike() -> None:
    content = encoded(photo(300, 400, seed=5), quality=92)
    chain = Preprocess(TRAINING)
    for seed in range(10):
        exact = to_bytes(chain.transform(content, random.Random(seed))).astype(int)
        quick = to_bytes(chain.transform(content, random.Random(seed), quick=True)).astype(int)
        assert np.abs(exact - quick).max() <= 1


def test_a_line_is_not_blown_up() -> None:
    line = Image.new("RGB", (40_000, 1))
    with pytest.raises(VitreousError, match=r"1 x 40000 is too long and thin for resize_small\(256"):
        ResizeSmall(256, 256)(line)
    assert ResizeSmall(16, 16)(line).size == (640_000, 16)
