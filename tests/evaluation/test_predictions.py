"""Every image once, in the data's order, whatever the batch size and the number of processes."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from two_processes import in_two_processes
from vitreous.classifier import Classifier
from vitreous.core.distributed import init_distributed
from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.data.open import open_data
from vitreous.data.source import Item, Source, Stream
from vitreous.data.sources.arrays import Arrays
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.class_mapping import align_classes
from vitreous.evaluation.predictions import Predictions, natural_mapping, predict_dataset

from conftest import random_checkpoint

NAMES = tuple("abcdefgh")
SHAPE: dict[str, Any] = dict(image_size=8, channels=1, classes=8, width=32, depth=1, heads=2, mlp=32)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with silence():
        yield


def classifier(names: tuple[str, ...] | None = NAMES, outputs: str = "softmax", **changes: Any) -> Classifier:
    checkpoint = random_checkpoint("ViT-Ti/4", names=names, **{**SHAPE, **changes})
    return Classifier(dataclasses.replace(checkpoint, outputs=outputs))


def make_images(count: int = 53, classes: tuple[str, ...] = NAMES, ids: list[str] | None = None) -> Arrays:
    rng = np.random.default_rng(1)
    targets = rng.integers(0, len(classes), count)
    targets[3] = -1
    return Arrays("drawn", "test", classes, rng.integers(0, 256, (count, 8, 8), np.uint8), targets, ids)


class Shards(Stream):
    """The images in shards of 20, 1 and the rest."""

    def __init__(self, source: Source) -> None:
        self.source, self.where, self.split, self.classes = source, source.where, source.split, source.classes
        self.shards, self.skipped = ("one", "two", "three"), []

    def read(self, shard: int) -> Iterator[Item]:
        bounds = (0, 20, 21, len(self.source))
        return (self.source[index] for index in range(*bounds[shard : shard + 2]))


def by_hand(clf: Classifier, data: Source) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Logits of one big batch, and probabilities in float64."""
    images = torch.stack([clf.preprocess(data.read(index)) for index in range(len(data))])
    with torch.no_grad():
        logits = clf.model(images).double().numpy()
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return logits, odds / odds.sum(axis=1, keepdims=True)


def same(one: Predictions, two: Predictions) -> None:
    assert one.ids == two.ids
    assert one.labels == two.labels
    assert one.given == two.given
    assert one.numbers.tolist() == two.numbers.tolist()
    assert one.top.tolist() == two.top.tolist()
    for name in ("probabilities", "truth", "losses"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-6)
    sums, others = one.counts.tensor(), two.counts.tensor()
    assert torch.allclose(sums, others)
    assert sums[:4].tolist() == others[:4].tolist()


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_rows_are_what_the_model_says(batch_size: int) -> None:
    clf, data = classifier(), make_images()
    clf.model.train()
    found = predict_dataset(clf, data, batch_size=batch_size, workers=0, features=True)
    assert clf.model.training
    assert not clf.model.lean
    clf.model.eval()
    logits, shares = by_hand(clf, data)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    assert found.numbers.tolist() == list(range(53))
    assert found.ids == tuple(f"test/{index:06d}" for index in range(53))
    assert found.top.tolist() == order.tolist()
    np.testing.assert_allclose(found.probabilities, np.take_along_axis(shares, order, 1), atol=1e-6)
    for row in range(53):
        if row == 3:
            assert found.labels[row] == ()
            assert np.isnan(found.truth[row])
            assert np.isnan(found.losses[row])
        else:
            (label,) = data.labels(row)
            assert found.labels[row] == (label,)
            assert found.truth[row] == pytest.approx(shares[row, label], abs=1e-6)
            assert found.losses[row] == pytest.approx(-np.log(shares[row, label]), abs=1e-5)
    assert found.counts.n == 52
    assert found.counts.unlabelled == 1
    targets = data.targets()
    right = order[:, 0] == targets
    assert found.right().tolist() == right.tolist()
    assert found.counts.top1 == pytest.approx(right.sum() / 52)
    assert found.counts.top5 == pytest.approx((order == targets[:, None]).any(axis=1).sum() / 52)
    images = torch.stack([clf.preprocess(data.read(index)) for index in range(53)])
    np.testing.assert_allclose(found.features, clf.features(images).numpy(), atol=1e-5)


def test_a_stream_comes_in_its_own_order() -> None:
    clf, data = classifier(), make_images()
    same(predict_dataset(clf, data, workers=0), predict_dataset(clf, Shards(data), batch_size=4, workers=0))


def together(folder: Path, clf: Classifier, data: Source | Stream) -> list[Predictions | str]:
    """What each of two processes gets: answers, or an error's line."""

    def work(rank: int) -> int:
        found: Predictions | str
        with init_distributed("cpu") as world:
            try:
                found = predict_dataset(clf, data, batch_size=3, workers=0, world=world, features=True)
            except VitreousError as error:
                found = str(error)
        (folder / f"{rank}.pickle").write_bytes(pickle.dumps(found))
        return 0

    in_two_processes(work)
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(2)]


@pytest.mark.parametrize("streamed", [False, True])
def test_two_processes_find_what_one_does(tmp_path: Path, streamed: bool) -> None:
    clf, source = classifier(), make_images()
    data = Shards(source) if streamed else source
    alone = predict_dataset(clf, data, workers=0, features=True)
    for found in together(tmp_path, clf, data):
        assert isinstance(found, Predictions)
        same(alone, found)
        assert found.features is not None
        assert alone.features is not None
        np.testing.assert_allclose(found.features, alone.features, atol=1e-5)


def test_more_processes_than_images(tmp_path: Path) -> None:
    clf, data = classifier(), make_images().subset([4])
    alone = predict_dataset(clf, data, workers=0)
    for found in together(tmp_path, clf, data):
        assert isinstance(found, Predictions)
        same(alone, found)


def test_a_fault_of_one_process_ends_both(tmp_path: Path) -> None:
    """Nobody waits for the share of a process that has given up."""
    data = photographs(tmp_path / "photos")
    (tmp_path / "photos" / "b" / "1.png").write_bytes(b"\x89PNG no")  # number 3: the second process's
    for found in together(tmp_path, classifier(), data):
        assert isinstance(found, str)
        assert "b/1.png" in found


def photographs(folder: Path) -> Source:
    for name in "abc":
        (folder / name).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(np.full((8, 8), 40 * number, np.uint8)).save(folder / name / f"{number}.png")
    source = open_data(folder).splits["all"]
    assert isinstance(source, Source)
    return source


def test_equal_logits_name_the_first_classes() -> None:
    clf = classifier()
    with torch.no_grad():
        clf.model.head.weight.zero_()
        clf.model.head.bias.zero_()
    found = predict_dataset(clf, make_images(), workers=0)
    assert (found.top == np.arange(5)).all()
    np.testing.assert_allclose(found.probabilities, 1 / 8, atol=1e-6)
    assert found.counts.top1 == pytest.approx(found.right().sum() / 52)


def test_sigmoid_outputs_and_several_labels() -> None:
    clf = classifier(outputs="sigmoid")

    class Several(Arrays):
        def labels(self, index: int) -> tuple[int, ...]:
            return ((), (2,), (1, 5))[index % 3]

    plain = make_images()
    data = Several("drawn", "test", NAMES, plain.images, plain.targets())
    found = predict_dataset(clf, data, workers=0, batch_size=16)
    logits, _ = by_hand(clf, data)
    yes = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(found.probabilities[:, 0], yes.max(axis=1), atol=1e-6)
    for row in range(53):
        own = data.labels(row)
        assert set(found.labels[row]) == set(own)
        if not own:
            assert np.isnan(found.losses[row])
            continue
        if found.top[row, 0] in own:
            assert found.labels[row][0] == found.top[row, 0]  # so that the confusion's diagonal is what is right
        target = np.isin(np.arange(8), own)
        assert found.losses[row] == pytest.approx(-np.where(target, np.log(yes[row]), np.log1p(-yes[row])).sum(), rel=1e-5)
        assert found.truth[row] == pytest.approx(yes[row][list(own)].max(), abs=1e-6)
    assert found.counts.confusion is not None
    assert int(found.counts.confusion.trace()) == found.right().sum()


def test_names_in_another_order_and_only_those_that_are_mapped() -> None:
    clf = classifier()
    some = make_images(classes=("f", "B ", "d"))
    found = predict_dataset(clf, some, workers=0)
    meant = {0: 5, 1: 1, 2: 3}
    assert [own for own in found.labels if own] == [(meant[label],) for label in some.targets().tolist() if label >= 0]
    few = predict_dataset(clf, some, workers=0, mapping=natural_mapping(clf, some, "mapped"))
    assert few.top.shape == (53, 3)
    assert set(few.top.flatten().tolist()) == {1, 3, 5}
    logits, _ = by_hand(clf, some)
    odds = np.exp(logits[:, [1, 3, 5]])
    np.testing.assert_allclose(few.probabilities.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(few.probabilities[:, 0], odds.max(axis=1) / odds.sum(axis=1), atol=1e-6)
    assert few.counts.n == 52


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    data = photographs(tmp_path)
    (tmp_path / "b" / "0.png").write_bytes(b"\x89PNG no")
    with pytest.raises(VitreousError, match=r"b/0\.png"):
        predict_dataset(classifier(), data, workers=0)
    found = predict_dataset(classifier(), data, workers=0, bad_images="skip")
    assert len(found) == 5
    assert found.numbers.tolist() == [0, 1, 3, 4, 5]
    ((place, why),) = found.bad
    assert place.endswith("b/0.png")
    assert why


def test_what_cannot_be_measured() -> None:
    data = make_images()
    with pytest.raises(VitreousError, match="is random"):
        predict_dataset(classifier(), data, preprocess=Preprocess("inception_crop(8)|flip|range(-1,1)", 1))
    with pytest.raises(VitreousError, match=r"1 images have the name of another .7. and would be counted twice"):
        predict_dataset(classifier(), make_images(ids=[*map(str, range(52)), "7"]))
    with pytest.raises(VitreousError, match="would be counted twice"):
        predict_dataset(classifier(), Shards(make_images(ids=[*map(str, range(52)), "7"])), workers=0)
    broken = classifier()
    with torch.no_grad():
        broken.model.head.bias[2] = float("nan")
    with pytest.raises(VitreousError, match="test/000000: the model's output is not finite"):
        predict_dataset(broken, data, workers=0)


def test_a_mapping_to_nothing_leaves_images_out() -> None:
    clf, data = classifier(), make_images()
    mapping = align_classes(NAMES, NAMES)
    part = dataclasses.replace(mapping, to=(*mapping.to[:4], (), (), (6, 7), ()))
    found = predict_dataset(clf, data, workers=0, mapping=part)
    targets = data.targets()
    assert found.counts.n == int(np.isin(targets, [0, 1, 2, 3, 6]).sum())
    for label, own, given in zip(targets.tolist(), found.labels, found.given, strict=True):
        assert given == ((label,) if label >= 0 else ())
        assert set(own) == (set(part.to[label]) if label >= 0 else set())
