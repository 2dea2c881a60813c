"""The numbers of an evaluation, against scikit-learn and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

from vitreous.core.errors import VitreousError
from vitreous.data.sources.arrays import Arrays
from vitreous.evaluation.accuracy import check_data, compute_metrics, most_confused, real_accuracy, worst_classes
from vitreous.evaluation.calibration import compute_calibration
from vitreous.evaluation.class_mapping import ClassMapping, align_classes
from vitreous.evaluation.class_tables import count_cells, rank_confusions
from vitreous.evaluation.counts import Counts
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.predictions import Predictions


def answers_of(
    logits: np.ndarray[Any, Any], given: list[tuple[int, ...]], mapping: ClassMapping, ids: tuple[str, ...] | None = None
) -> Predictions:
    """Answers as `answer` would give them, made from logits alone."""
    shares = torch.tensor(logits).softmax(dim=1)
    top = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    labels = [mapping.labels(own) for own in given]
    labels = [(g, *(x for x in own if x != g)) if g in own else own for own, g in zip(labels, top[:, 0].tolist(), strict=True)]
    truth = torch.tensor([max((float(shares[row, k]) for k in own), default=float("nan")) for row, own in enumerate(labels)])
    counts = Counts(logits.shape[1])
    counts.update(torch.tensor(logits), labels, -truth.log())
    n = len(logits)
    return Predictions(
        where="drawn", split="test", classes=mapping.model, ids=ids or tuple(map(str, range(n))), numbers=np.arange(n),
        labels=tuple(labels), top=top, probabilities=shares.numpy()[np.arange(n)[:, None], top].astype(np.float32),
        truth=truth.numpy(), losses=-truth.log().numpy(), features=None, bad=(), seconds=2.0, counts=counts,
        given=tuple(given), mapping=mapping, model_seconds=1.0,
    )  # fmt: skip


def drawn(n: int = 400, classes: int = 7) -> tuple[np.ndarray[Any, Any], list[int]]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes - 1, n)  # the last class has no image
    logits = rng.normal(size=(n, classes)).astype(np.float32)
    logits[np.arange(n), labels] += 1.0
    return logits, labels.tolist()


NAMES = tuple("abcdefg")


def test_everything_against_scikit_learn() -> None:
    logits, labels = drawn()
    found = compute_metrics(answers_of(logits, [(label,) for label in labels], align_classes(NAMES, NAMES)))
    guesses = logits.argmax(axis=1)
    assert found["n"] == 400
    assert found["top1"] == pytest.approx(metrics.accuracy_score(labels, guesses))
    assert found["top5"] == pytest.approx(metrics.top_k_accuracy_score(labels, logits, k=5, labels=range(7)))
    shares = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(axis=1, keepdims=True)
    assert found["loss"] == pytest.approx(metrics.log_loss(labels, shares, labels=range(7)), rel=1e-5)
    assert found["confusion"] == metrics.confusion_matrix(labels, guesses, labels=range(7)).tolist()
    precision, recall, f1, n = metrics.precision_recall_fscore_support(labels, guesses, labels=range(7), zero_division=0)
    for k, row in enumerate(found["per_class"]):
        assert row == {
            "class": NAMES[k], "precision": pytest.approx(precision[k]), "recall": pytest.approx(recall[k]),
            "f1": pytest.approx(f1[k]), "n": n[k],
        }  # fmt: skip
    assert found["mean_per_class"]["recall"] == pytest.approx(recall[:6].mean())  # the classes that have images
    assert found["interval"] == pytest.approx(wilson(found["top1"], 400))
    low, high = found["intervals"]["mean_recall"]
    assert low < found["mean_per_class"]["recall"] < high
    assert found["ece"] == pytest.approx(compute_calibration(shares.max(axis=1), guesses == labels).ece, abs=1e-5)
    assert sum(row["n"] for row in found["reliability"]) == 400
    assert (found["images_per_second"], found["model_images_per_second"]) == (200.0, 400.0)
    assert [row["class"] for row in worst_classes(found, 6)] == [NAMES[k] for k in np.argsort(f1[:6])]
    json.dumps(found, allow_nan=False)


def test_the_most_confused_without_a_matrix() -> None:
    logits, labels = drawn()
    whole = answers_of(logits, [(label,) for label in labels], align_classes(NAMES, NAMES))
    cells = count_cells(metrics.confusion_matrix(labels, logits.argmax(axis=1), labels=range(7)))
    expected = [(*cell, cells[cell]) for cell in rank_confusions(cells, 30)]
    assert len({count for *_, count in expected}) < len(expected) <= 30  # some are equal, and their order is fixed
    assert most_confused(whole, 30) == expected
    whole.counts._confused = False
    assert compute_metrics(whole)["confusion"] is None


def test_the_bootstrap_is_drawn_by_the_seed() -> None:
    logits, labels = drawn()
    answers = answers_of(logits, [(label,) for label in labels], align_classes(NAMES, NAMES))
    found = compute_metrics(answers, method="bootstrap", seed=4)
    assert found["interval_method"] == "bootstrap"
    assert found == compute_metrics(answers, method="bootstrap", seed=4)
    assert found["interval"] == pytest.approx(wilson(found["top1"], 400), abs=0.01)
    assert found["interval"] != list(wilson(found["top1"], 400))


def test_several_model_classes_for_one_of_the_data() -> None:
    """ObjectNet's way: any of them is right, and one that maps to nothing is left out and counted."""
    logits, labels = drawn()
    to = ((0, 1), (2,), (), (3, 4), (5,), (6,))
    mapping = ClassMapping(("p", "q", "r", "s", "t", "u"), NAMES, to)
    answers = answers_of(logits, [(label,) for label in labels], mapping)
    found = compute_metrics(answers)
    guesses = logits.argmax(axis=1)
    right = [guess in to[label] for guess, label in zip(guesses, labels, strict=True) if to[label]]
    assert found["n"] == len(right)
    assert found["top1"] == pytest.approx(np.mean(right))
    assert found["mapped_to_nothing"] == labels.count(2)
    assert found["unlabelled"] == 0
    assert np.trace(found["confusion"]) == sum(right)
    rows = {row["class"]: row for row in found["per_data_class"]}
    assert list(rows) == ["p", "q", "s", "t", "u"]
    own = [label == 3 for label in labels]
    assert rows["s"]["n"] == sum(own)
    assert rows["s"]["model_classes"] == ["d", "e"]
    assert rows["s"]["recall"] == pytest.approx(np.isin(guesses, (3, 4))[own].mean())
    recalls = [np.isin(guesses[np.array(labels) == k], to[k]).mean() for k in (0, 1, 3, 4, 5)]
    assert found["mean_per_class"]["recall"] == pytest.approx(np.mean(recalls)), "of the data's classes, not of the model's"
    low, high = found["intervals"]["mean_recall"]
    assert low < np.mean(recalls) < high


def test_what_has_nothing_to_measure() -> None:
    logits, _ = drawn()
    names = align_classes(NAMES, NAMES)
    with pytest.raises(VitreousError, match="no labelled image"):
        compute_metrics(answers_of(logits, [()] * 400, names))
    with pytest.raises(VitreousError, match="all images have the same class"):
        compute_metrics(answers_of(logits, [(2,)] * 400, names))
    with pytest.raises(VitreousError, match="maps to one of the model's"):
        compute_metrics(answers_of(logits, [(2,)] * 400, ClassMapping(NAMES, NAMES, ((0,), (1,), (), (), (), (), ()))))


def test_data_that_is_refused_before_the_model_runs() -> None:
    def data(targets: list[int]) -> Arrays:
        return Arrays("drawn", "test", NAMES, np.zeros((len(targets), 2, 2), np.uint8), np.array(targets, np.int64))

    check_data(data([0, 1]))
    with pytest.raises(VitreousError, match="drawn test: there are no images"):
        check_data(data([]))
    with pytest.raises(VitreousError, match="no image has a label"):
        check_data(data([-1, -1]))
    with pytest.raises(VitreousError, match="same class"):
        check_data(data([3, 3, -1]))


# ReaL ------------------------------------------------------------------------------------------------------------------

THOUSAND = tuple(f"class {number}" for number in range(1000))


def real_file(folder: Path, first: list[list[int]]) -> Path:
    path = folder / "real.json"
    path.write_text(json.dumps([*first, *([[]] * (50_000 - len(first)))]))
    return path


def test_real_labels_are_sets_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    logits = np.zeros((4, 1000), np.float32)
    logits[np.arange(4), [7, 8, 9, 1]] = 1.0
    ids = tuple(f"val/n0/ILSVRC2012_val_0000000{number}.JPEG" for number in (4, 3, 2, 1))  # in another order than the file
    answers = answers_of(logits, [(7,), (0,), (0,), (1,)], align_classes(THOUSAND, THOUSAND), ids)
    path = real_file(tmp_path, [[1, 3], [9, 8], [2], []])  # of images 1, 2, 3, 4
    assert real_accuracy(answers, path) == {"top1": 2 / 3, "n": 3, "interval": list(wilson(2 / 3, 3)), "left_out": 1}
    assert compute_metrics(answers)["top1"] == 0.5


def test_real_labels_of_classes_in_another_order(tmp_path: Path) -> None:
    """As with folders that are named by words: every number would be wrong, and none would look so."""
    ids = [f"x/ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 101)]
    labels = np.arange(100)
    path = real_file(tmp_path, [[int(label), 999] if row % 3 else [998] for row, label in enumerate(labels)])

    def data(targets: np.ndarray[Any, Any]) -> Arrays:
        return Arrays("val", "test", THOUSAND, np.zeros((100, 1, 1), np.uint8), targets, ids)

    check_data(data(labels), path)
    with pytest.raises(VitreousError, match="val test: only 0 of 100 labels are among the ReaL labels"):
        check_data(data(999 - 10 - labels), path)
    logits = np.eye(1000, dtype=np.float32)[labels]
    names = align_classes(THOUSAND, THOUSAND)
    assert real_accuracy(answers_of(logits, [(int(k),) for k in labels], names, tuple(ids)), path)["top1"] == 0.66
    with pytest.raises(VitreousError, match="not in ImageNet's order"):
        real_accuracy(answers_of(logits, [(int(989 - k),) for k in labels], names, tuple(ids)), path)


def test_real_files_and_images_that_do_not_fit(tmp_path: Path) -> None:
    def data(ids: list[str], classes: tuple[str, ...] = THOUSAND) -> Arrays:
        return Arrays("val", "test", classes, np.zeros((len(ids), 1, 1), np.uint8), np.arange(len(ids)), ids)

    path = real_file(tmp_path, [[1]])
    names = [f"x/ILSVRC2012_val_0000000{number}.JPEG" for number in (1, 2)]
    check_data(data(names), path)
    with pytest.raises(VitreousError, match="more than one image of that name"):
        check_data(data([names[0], names[0].replace("x/", "y/")]), path)
    with pytest.raises(VitreousError, match="1,000 classes"):
        check_data(data(names, THOUSAND[:10]), path)
    with pytest.raises(VitreousError, match="not one of ImageNet's"):
        check_data(data([names[0], "x/cat.jpg"]), path)
    path.write_text("[[1], [2]]")
    with pytest.raises(VitreousError, match="2 entries, where the ReaL labels have 50,000"):
        check_data(data(names), path)
