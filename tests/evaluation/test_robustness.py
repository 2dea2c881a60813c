"""What befalls images, each against a computation of its own; and the curve, against what the model says of them."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.data.source import Item, Stream
from vitreous.data.sources.arrays import Arrays
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.corruptions import CORRUPTIONS, Corrupted, blur, brightness, crop, jpeg, resolution
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.predictions import predict_dataset
from vitreous.evaluation.robustness import measure_robustness

from conftest import random_checkpoint


def photo(height: int = 60, width: int = 80, seed: int = 0) -> Image.Image:
    """Smooth, as photographs mostly are, and with an edge."""
    noise = np.random.default_rng(seed).uniform(0, 255, (height, width, 3))
    smooth = gaussian_filter(noise, (3, 3, 0)) * 3 - 250
    smooth[:, width // 2 :] += 90
    return Image.fromarray(np.clip(smooth, 0, 255).astype(np.uint8))


def pixels(image: Image.Image) -> NDArray[np.float64]:
    return np.asarray(image, np.float64)


@pytest.mark.parametrize("factor", [0.25, 0.75, 1.5, 2.0])
def test_brightness_multiplies(factor: float) -> None:
    expected = np.clip(pixels(photo()) * factor, 0, 255)
    assert np.abs(pixels(brightness(photo(), factor, 224)) - expected).max() <= 1


@pytest.mark.parametrize("percent", [1.0, 4.0, 8.0])
def test_blur_is_gaussian(percent: float) -> None:
    """Pillow's is three box filters, which is a Gaussian to within a few levels."""
    sigma = 60 * percent / 100
    expected = gaussian_filter(pixels(photo()), (sigma, sigma, 0), mode="nearest")
    found = pixels(blur(photo(), percent, 224))
    assert np.abs(found - expected).mean() < 1.0
    if percent > 1:
        assert np.abs(pixels(photo()) - expected).mean() > 2 * np.abs(found - expected).mean()


def test_blur_is_relative_to_the_image() -> None:
    """Twice the image, twice the blur: made small, both look the same."""
    large = photo().resize((160, 120), Image.Resampling.BICUBIC)
    small = pixels(blur(large, 4.0, 224).resize((80, 60), Image.Resampling.BOX))
    assert np.abs(small - pixels(blur(photo(), 4.0, 224))).mean() < 2.5


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpeg_is_what_a_file_of_that_quality_gives(mode: str) -> None:
    file = io.BytesIO()
    photo().convert(mode).save(file, format="JPEG", quality=10)
    found = jpeg(photo().convert(mode), 10.0, 224)
    assert found.mode == mode
    assert np.array_equal(np.asarray(found), np.asarray(Image.open(file)))
    assert not np.array_equal(np.asarray(found), np.asarray(photo().convert(mode)))


@pytest.mark.parametrize(("percent", "down", "across"), [(90.0, 3, 4), (60.0, 12, 16), (50.0, 15, 20)])
def test_crop_keeps_the_middle(percent: float, down: int, across: int) -> None:
    assert np.array_equal(np.asarray(crop(photo(), percent, 224)), np.asarray(photo())[down:-down, across:-across])


def test_crop_does_not_move_a_small_image() -> None:
    """8 pixels, as a digit has: nothing, one, one, two and two of them are cut on either side."""
    assert [crop(photo(8, 8), percent, 8).size for percent in (90, 80, 70, 60, 50)] == [(8, 8), (6, 6), (6, 6), (4, 4), (4, 4)]
    centred = np.pad(np.ones((2, 2), np.uint8), 3)
    found = np.asarray(crop(Image.fromarray(centred), 60, 8))
    assert np.array_equal(found, found[::-1, ::-1])
    assert found.sum() == 4


def test_resolution_is_measured_by_what_the_model_takes_in() -> None:
    found = pixels(resolution(photo(), 50.0, 40))  # the shorter side, 60, becomes 20
    assert found.shape == (20, 27, 3)
    exact = pixels(resolution(photo(60, 90), 50.0, 40))
    blocks = pixels(photo(60, 90)).reshape(20, 3, 30, 3, 3).mean(axis=(1, 3))
    assert np.abs(exact - blocks).max() <= 1
    assert resolution(photo(), 75.0, 224).size == (80, 60)  # an image is never enlarged


def test_a_tiny_image_survives_everything() -> None:
    for corruption in CORRUPTIONS:
        for strength in corruption.strengths:
            for mode in ("RGB", "L"):
                found = corruption.apply(Image.new(mode, (1, 3), 9), strength, 8)
                assert found.mode == mode
                assert min(found.size) >= 1


def test_there_are_five_strengths_of_five() -> None:
    assert [corruption.name for corruption in CORRUPTIONS] == ["brightness", "blur", "JPEG quality", "crop", "resolution"]
    assert all(len(set(corruption.strengths)) == 5 for corruption in CORRUPTIONS)


# Sources ----------------------------------------------------------------------------------------------------------------------


def arrays(n: int = 40, side: int = 12) -> Arrays:
    tints = np.random.default_rng(7).uniform(0.1, 1.6, (n, 1, 1, 3))
    plain = np.stack([np.asarray(photo(side, side, seed)) for seed in range(n)])
    images = np.clip(plain * tints, 0, 255).astype(np.uint8)
    return Arrays("made", "test", ("a", "b", "c"), images, np.arange(n) % 3)


def classifier(preprocess: str = "resize(8)|range(-1,1)") -> Classifier:
    """Random, but on these images it names all three classes."""
    made = Classifier(
        random_checkpoint(
            "ViT-Ti/4",
            classes=3,
            image_size=8,
            width=16,
            depth=2,
            heads=2,
            mlp=16,
            names=("a", "b", "c"),
            preprocess=preprocess,
        )
    )
    with torch.no_grad():
        made.model.head.bias -= made.model(torch.stack([made.preprocess(image) for image in arrays().images])).mean(dim=0)
    return made


class Few(Stream):
    """Two shards, in memory."""

    def __init__(self, source: Arrays) -> None:
        self.where, self.split, self.classes = source.where, source.split, source.classes
        self.shards, self.skipped = ("0", "1"), []
        self._items = list(source.items())

    def read(self, shard: int) -> Any:
        return iter(self._items[shard::2])


def test_the_curve_is_what_the_model_says() -> None:
    """Every point against the model run by hand on images changed by hand."""
    clf, source = classifier(), arrays()
    answers = predict_dataset(clf, source, workers=0)
    found = measure_robustness(clf, source, answers, workers=0)
    assert found.clean.n == 40
    assert found.clean.accuracy == answers.counts.top1
    assert [len(curve.points) for curve in found.curves] == [5] * 5
    for corruption, curve in zip(CORRUPTIONS, found.curves, strict=True):
        for strength, point in zip(corruption.strengths, curve.points, strict=True):
            batch = torch.stack(
                [clf.preprocess(corruption.apply(Image.fromarray(image), strength, 8)) for image in source.images]
            )
            with torch.no_grad():
                right = (clf.model(batch).argmax(dim=1).numpy() == source.targets()).mean()
            assert point.accuracy == pytest.approx(right)
            assert point.interval == wilson(point.accuracy, 40)
    assert len({point.accuracy for curve in found.curves for point in curve.points}) > 3
    assert json.loads(json.dumps(found.as_dict()))["curves"][1]["points"][4]["strength"] == 8.0
    assert found.worst()[1].accuracy == min(point.accuracy for curve in found.curves for point in curve.points)


def test_the_sample_is_drawn_by_the_seed_and_the_same_for_all() -> None:
    clf, source = classifier(), arrays()
    answers = predict_dataset(clf, source, workers=0)
    some = CORRUPTIONS[:1]
    found = [measure_robustness(clf, source, answers, images=20, seed=seed, corruptions=some, workers=0) for seed in (1, 1, 2)]
    assert [one.clean.n for one in found] == [20] * 3
    assert found[0].curves == found[1].curves
    assert found[0].clean == found[1].clean
    assert (found[0].clean, found[0].curves) != (found[2].clean, found[2].curves)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_changes_nothing_costs_nothing(streamed: bool) -> None:
    """The images that are changed are those of which the clean accuracy is told."""
    clf, source = classifier(), arrays()
    data = Few(source) if streamed else source
    answers = predict_dataset(clf, data, workers=0)
    same = dataclasses.replace(CORRUPTIONS[0], strengths=(1.0,))
    found = [measure_robustness(clf, data, answers, images=9, seed=seed, corruptions=[same], workers=0) for seed in range(4)]
    assert [one.curves[0].points[0] for one in found] == [one.clean for one in found]
    assert len({one.clean.accuracy for one in found}) > 1


def test_a_stream_of_shards() -> None:
    clf, source = classifier(), arrays()
    stream = Few(source)
    answers = predict_dataset(clf, stream, workers=0)
    some = CORRUPTIONS[1:2]
    streamed = measure_robustness(clf, stream, answers, corruptions=some, workers=0)
    assert (
        streamed.curves
        == measure_robustness(clf, source, predict_dataset(clf, source, workers=0), corruptions=some, workers=0).curves
    )


def test_preprocessing_that_only_cuts() -> None:
    """An image of half the size would not fit; it is brought back to the size it had."""
    clf, source = classifier("central_crop(8)|range(-1,1)"), arrays(6)
    found = measure_robustness(clf, source, predict_dataset(clf, source, workers=0), corruptions=CORRUPTIONS[3:], workers=0)
    assert all(point.n == 6 for curve in found.curves for point in curve.points)
    changed = Corrupted(source, CORRUPTIONS[3], 50.0, clf.preprocess).read(0)
    assert isinstance(changed, np.ndarray)
    assert changed.shape == (12, 12, 3)


class Broken(Arrays):
    def read(self, index: int) -> Any:
        if index == 3 and self.gone:
            raise BadImage("image 3", "missing", "gone")
        return super().read(index)

    gone = False


def test_an_image_that_vanishes_is_missing_and_no_end() -> None:
    clf, plain = classifier(), arrays(9)
    source = Broken("made", "test", plain.classes, plain.images, plain.targets())
    answers = predict_dataset(clf, source, workers=0)
    source.gone = True
    found = measure_robustness(clf, source, answers, corruptions=CORRUPTIONS[:1], workers=0)
    assert found.clean.n == 9
    assert {point.n for point in found.curves[0].points} == {8}


def test_bad_input() -> None:
    clf, source = classifier(), arrays(6)
    bare = Arrays("made", "test", ("a", "b", "c"), source.images, np.full(6, -1))
    with pytest.raises(VitreousError, match="no image has a label"):
        measure_robustness(clf, bare, predict_dataset(clf, bare, workers=0))


def test_every_result_is_deterministic() -> None:
    preprocess = Preprocess("resize(8)|range(-1,1)")
    for corruption in CORRUPTIONS:
        twice = [Corrupted(arrays(2), corruption, corruption.strengths[-1], preprocess).read(1) for _ in range(2)]
        assert np.array_equal(*twice)


def test_items_keep_their_names() -> None:
    item = Corrupted(arrays(2), CORRUPTIONS[0], 0.5, Preprocess("resize(8)|range(-1,1)"))[1]
    assert isinstance(item, Item)
    assert (item.id, item.labels) == ("test/000001", (1,))
