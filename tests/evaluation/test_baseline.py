"""The closed-form baseline against plain algebra on the same features, and what it does about awkward data."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import linear_model

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.data.open import open_data
from vitreous.data.shards.reader import open_shards
from vitreous.data.shards.writer import write_shards
from vitreous.data.source import Content, Dataset, Source, View
from vitreous.data.sources.arrays import Arrays
from vitreous.data.sources.relabelled import Relabelled
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation import baseline as module
from vitreous.evaluation.baseline import Baseline, closed_form_baseline
from vitreous.models.cost import compute_cost

from conftest import random_checkpoint

PREPROCESS = Preprocess("resize(8)|range(-1,1)", 1)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return open_data("builtin:digits")


def part(digits: Dataset, split: str) -> Arrays:
    source = digits.source(split)
    assert isinstance(source, Arrays)
    return source


def model(**options: object) -> Classifier:
    sizes = dict(width=24, depth=1, heads=3, mlp=48, image_size=8, classes=10, channels=1, representation=60)
    return Classifier(random_checkpoint("ViT-Ti/2", preprocess="resize(8)|range(-1,1)", **{**sizes, **options}))


def test_against_scikit_learn_on_the_same_features(digits: Dataset) -> None:
    clf, train, test = model(), part(digits, "train"), part(digits, "test")
    found = closed_form_baseline(clf, train, test, PREPROCESS, workers=0)
    first, second = (clf.features(list(source.images)).double().numpy() for source in (train, test))
    assert first.shape == (1097, 60)  # after the representation layer
    mean, std = first.mean(axis=0), first.std(axis=0) + 1e-5
    x, z = (np.hstack([(rows - mean) / std, np.full((len(rows), 1), 100.0)]) for rows in (first, second))
    y = 2 * np.eye(10)[train.targets()] - 1
    right = {}
    for power in range(-10, 20):
        hat = x @ np.linalg.solve(x.T @ x + 2.0**power * np.eye(61), x.T)
        own = np.diag(hat)[:, None]
        right[power] = int((((hat @ y - own * y) / (1 - own)).argmax(axis=1) == train.targets()).sum())
    best = max(power for power in right if right[power] == max(right.values()))
    assert len(set(right.values())) > 5
    assert found.l2 == 2.0**best
    assert found.left_out == pytest.approx(right[best] / 1097, abs=1e-12)
    scores = linear_model.Ridge(alpha=2.0**best, fit_intercept=False).fit(x, y).predict(z)
    assert found.accuracy == pytest.approx(float((scores.argmax(axis=1) == test.targets()).mean()), abs=1e-12)
    assert 0.5 < found.accuracy < 1
    assert (found.n_train, found.n_test, found.all_train, found.all_test, found.bad) == (1097, 500, 1097, 500, 0)


def test_what_it_says() -> None:
    said = Baseline(0.864, 1024.0, 0.85, 1500, 500, 12.3, 1500, 10_000).sentence()
    assert "86.4% ± 1.5 of 500 of 10,000 held-out images" in said
    assert "to 1,500 training images, l2 = 2^10; 12 s" in said
    assert "the first 500" in Baseline(0.5, 1.0, 0.5, 500, 500, 1.0, None, None, bad=3).sentence()
    assert "3 unreadable" in Baseline(0.5, 1.0, 0.5, 500, 500, 1.0, None, None, bad=3).sentence()


@pytest.mark.parametrize(
    ("affordable", "train", "test", "expected"),
    [
        (10**9, 50_000, 10_000, (2000, 1000)),
        (1500, 50_000, 10_000, (1000, 500)),
        (1500, 50_000, 100, (1400, 100)),  # what one side has no images for goes to the other
        (1500, 300, 10_000, (300, 1000)),
        (0, 50_000, 10_000, (64, 64)),  # however much they cost
        (0, 10, 5, (10, 5)),
        (1500, None, None, (1000, 500)),
    ],
)
def test_how_many(affordable: int, train: int | None, test: int | None, expected: tuple[int, int]) -> None:
    assert module._split_budget(affordable, train, test, 2000, 1000) == expected


def test_a_costly_model_sees_fewer_images(digits: Dataset) -> None:
    clf = model()
    each = compute_cost(clf.config).macs
    few = closed_form_baseline(clf, part(digits, "train"), part(digits, "test"), PREPROCESS, workers=0, macs=300.5 * each)
    assert (few.n_train, few.n_test) == (200, 100)
    assert module.affordable_images(clf.model, Preprocess("resize(16)|range(-1,1)", 1), "cpu", 300.5 * each) == 75
    again = closed_form_baseline(clf, part(digits, "train"), part(digits, "test"), PREPROCESS, workers=0, macs=300.5 * each)
    other = closed_form_baseline(
        clf, part(digits, "train"), part(digits, "test"), PREPROCESS, workers=0, macs=300.5 * each, seed=1
    )
    assert (again.accuracy, again.left_out) == (few.accuracy, few.left_out)
    assert (other.accuracy, other.left_out) != (few.accuracy, few.left_out)


def uneven() -> Arrays:
    targets = np.repeat([0, 1, 2, -1], [700, 298, 2, 500])
    return Arrays("made", "train", ("a", "b", "c"), np.zeros((1500, 8, 8), np.uint8), targets)


def test_the_sample_has_every_class_in_its_share() -> None:
    evaluated = module.sample_images(uneven(), 100, seed=0, every_class=False)
    fitted = module.sample_images(uneven(), 100, seed=0, every_class=True)
    assert isinstance(evaluated, Source)
    assert isinstance(fitted, Source)
    assert evaluated.counts().tolist() == [70, 30, 0]
    assert fitted.counts().tolist() == [69, 30, 1]
    assert module.sample_images(uneven(), 1000, seed=0, every_class=True).counts().tolist() == [700, 298, 2]  # type: ignore[union-attr]
    ids = [[evaluated.id(i) for i in range(100)] for evaluated in (evaluated, module.sample_images(uneven(), 100, 1, False))]  # type: ignore[union-attr]
    assert ids[0] == sorted(set(ids[0]))
    assert ids[0] != ids[1]


class Broken(View):
    """Every fifth image cannot be read."""

    encoded = True

    def read(self, index: int) -> Content:
        if index % 5 == 0:
            return b"\x89PNG\r\n\x1a\n broken"
        out = io.BytesIO()
        Image.fromarray(np.asarray(self.parent.read(index))).save(out, "PNG")
        return out.getvalue()


def test_images_that_cannot_be_read(digits: Dataset) -> None:
    train, test = Broken(part(digits, "train")), part(digits, "validation")
    found = closed_form_baseline(model(), train, test, PREPROCESS, workers=0, bad_images="skip")
    assert (found.n_train, found.bad, found.all_train) == (877, 220, 1097)
    good = part(digits, "train").subset([i for i in range(1097) if i % 5])
    assert found.accuracy == closed_form_baseline(model(), good, test, PREPROCESS, workers=0).accuracy
    with pytest.raises(BadImage):
        closed_form_baseline(model(), train, test, PREPROCESS, workers=0)
    with pytest.raises(VitreousError, match=r"no image with a label; 4 could not be read"):
        closed_form_baseline(model(), train.subset([0, 5, 10, 15]), test, PREPROCESS, workers=0, bad_images="skip")


def test_images_without_labels_and_with_several(digits: Dataset) -> None:
    """Held-out images whose labels are all classes cannot be wrong; those without labels are not asked."""
    train, test = part(digits, "train"), part(digits, "validation")
    labels = [() if i % 2 else tuple(range(10)) for i in range(len(test))]
    found = closed_form_baseline(model(), train, Relabelled(test, labels), PREPROCESS, workers=0)
    assert (found.accuracy, found.n_test, found.all_test) == (1.0, 100, 100)
    halved = Relabelled(train, [train.labels(i) if i % 2 else () for i in range(len(train))])
    assert closed_form_baseline(model(), halved, test, PREPROCESS, workers=0).n_train == 548
    with pytest.raises(VitreousError, match="builtin:digits validation: no image with a label"):
        closed_form_baseline(model(), train, Relabelled(test, [()] * len(test)), PREPROCESS, workers=0)


def test_shards(digits: Dataset, tmp_path: Path) -> None:
    write_shards(digits, tmp_path / "shards", shard_bytes=60_000)
    streams = open_shards(str(tmp_path / "shards"))
    clf = model()
    all_of_it = closed_form_baseline(clf, streams.source("train"), streams.source("test"), PREPROCESS, workers=0)
    plain = closed_form_baseline(clf, part(digits, "train"), part(digits, "test"), PREPROCESS, workers=0)
    assert (all_of_it.accuracy, all_of_it.l2, all_of_it.n_train) == (plain.accuracy, plain.l2, 1097)
    some = closed_form_baseline(
        clf, streams.source("train"), streams.source("test"), PREPROCESS, workers=1, most=100, most_test=50
    )
    assert (some.n_train, some.n_test) == (100, 50)
    assert "the first 100 training images" in some.sentence()


def test_the_model_and_the_random_numbers_are_left_as_they_were(digits: Dataset) -> None:
    clf = model(dropout=0.5)
    clf.model.train()
    before, state = torch.get_rng_state(), {name: tensor.clone() for name, tensor in clf.model.state_dict().items()}
    first, second = (
        closed_form_baseline(clf.model, part(digits, "train"), part(digits, "test"), PREPROCESS, workers=0, most=100)
        for _ in range(2)
    )
    assert first.left_out == second.left_out  # without dropout
    assert clf.model.training
    assert all(parameter.requires_grad for parameter in clf.model.parameters())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in clf.model.state_dict().items())


def test_many_classes_are_chosen_for_among_fewer_l2() -> None:
    assert module._l2s(2000, 768, 100) == module.L2S
    assert set(module._l2s(2000, 768, 21_843)) < set(module.L2S)


def test_refusals(digits: Dataset) -> None:
    train, test = part(digits, "train"), part(digits, "test")
    with pytest.raises(VitreousError, match="train: no image with a label"):
        closed_form_baseline(model(), train.subset([]), test, PREPROCESS, workers=0)
    broken = model()
    with torch.no_grad():
        broken.model.embedding.weight.fill_(float("nan"))  # type: ignore[union-attr]
    with pytest.raises(VitreousError, match="not finite"):
        closed_form_baseline(broken, train, test, PREPROCESS, workers=0)
