"""Likely label errors: planted ones are found, and the table to re-label from can be read back."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from vitreous.data.open import open_data
from vitreous.data.sources.arrays import Arrays
from vitreous.evaluation.class_mapping import ClassMapping
from vitreous.evaluation.counts import Counts
from vitreous.evaluation.label_errors import COLUMNS, class_names, label_errors, thresholds, write_relabel
from vitreous.evaluation.predictions import Predictions
from vitreous.inference.features import Features


def answers_of(
    probabilities: NDArray[Any],
    labels: list[tuple[int, ...]],
    classes: tuple[str, ...] | None = None,
    features: NDArray[np.float32] | None = None,
    **more: Any,
) -> Predictions:
    """What a model with these probabilities (n, classes) answers."""
    n, c = probabilities.shape
    top = np.argsort(-probabilities, axis=1, kind="stable")[:, : min(5, c)]
    truth = np.array([max((probabilities[row, k] for k in own), default=np.nan) for row, own in enumerate(labels)], np.float32)
    plain: dict[str, Any] = dict(
        where="made",
        split="test",
        classes=classes or tuple(str(k) for k in range(c)),
        ids=tuple(f"{row:04d}" for row in range(n)),
        numbers=np.arange(n),
        labels=tuple(labels),
        top=top,
        probabilities=np.take_along_axis(probabilities, top, axis=1).astype(np.float32),
        truth=truth,
        losses=-np.log(np.maximum(truth, 1e-12)),
        features=features,
        bad=(),
        seconds=1.0,
        counts=Counts(c),
    )
    return Predictions(**{**plain, **more})


def confident_learning(probabilities: NDArray[Any], labels: NDArray[np.int64]) -> dict[int, int]:
    """Straight from the paper's definition, with all probabilities: row to suggested class."""
    c = probabilities.shape[1]
    limit = np.array([probabilities[labels == k, k].mean() if (labels == k).any() else np.inf for k in range(c)])
    found = {}
    for row, own in enumerate(labels):
        passing = [k for k in range(c) if probabilities[row, k] >= limit[k]]
        if passing:
            best = max(passing, key=lambda k: probabilities[row, k])
            if best != own and probabilities[row, best] > probabilities[row, own]:
                found[row] = best
    return found


@pytest.mark.parametrize("classes", [2, 4, 9])
def test_against_the_definition(classes: int) -> None:
    """With nine classes only five probabilities of each image are known, and the suspects are the same."""
    random = np.random.default_rng(classes)
    labels = random.integers(0, classes, 400)
    logits = random.standard_normal((400, classes)) + 2 * np.eye(classes)[random.permuted(labels[:, None], axis=0)[:, 0]]
    logits += 2 * np.eye(classes)[labels] * (random.random(400) < 0.8)[:, None]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = label_errors(answers_of(probabilities, [(int(k),) for k in labels]))
    expected = confident_learning(probabilities.astype(np.float32).astype(np.float64), labels)
    assert {suspect.row: suspect.suggested for suspect in found} == expected
    assert len(expected) > 5
    assert [suspect.margin for suspect in found] == sorted((suspect.margin for suspect in found), reverse=True)
    for suspect in found:
        assert suspect.confidence == pytest.approx(probabilities[suspect.row, suspect.suggested], abs=1e-6)
        assert suspect.margin == pytest.approx(
            probabilities[suspect.row, suspect.suggested] - probabilities[suspect.row, labels[suspect.row]], abs=1e-6
        )


@pytest.fixture(scope="module")
def planted() -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Digits of which one in twenty has a wrong label; each predicted by a model that never saw it."""
    images, truth = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    wrong = np.sort(random.permutation(len(truth))[: len(truth) // 20])
    given = truth.copy()
    given[wrong] = (truth[wrong] + random.integers(1, 10, len(wrong))) % 10
    model = LogisticRegression(max_iter=200)
    return images, truth, given, cross_val_predict(model, images / 16, given, cv=4, method="predict_proba")


def test_planted_errors_are_found(planted: tuple[NDArray[Any], ...]) -> None:
    _, truth, given, probabilities = planted
    wrong = set(np.flatnonzero(truth != given).tolist())
    found = label_errors(answers_of(probabilities, [(int(k),) for k in given]))
    rows = [suspect.row for suspect in found]
    hits = wrong & set(rows)
    assert len(hits) / len(wrong) > 0.65
    assert len(hits) / len(rows) > 0.75
    assert len(wrong & set(rows[:40])) >= 36  # the best of the list are nearly all errors
    assert np.mean([truth[suspect.row] == suspect.suggested for suspect in found if suspect.row in wrong]) > 0.9


def test_neighbours_make_the_list_better(planted: tuple[NDArray[Any], ...]) -> None:
    images, truth, given, probabilities = planted
    wrong = truth != given
    features = images.astype(np.float32)
    half = np.arange(len(truth)) % 2 == 0  # one half is asked about the other
    training = Features(
        features[half],
        tuple((int(k),) for k in truth[half]),
        tuple(str(k) for k in np.flatnonzero(half)),
        np.flatnonzero(half),
        tuple(f" {k}".upper() for k in range(10)),
    )
    answers = answers_of(probabilities[~half], [(int(k),) for k in given[~half]], features=features[~half])
    asked, alone = label_errors(answers, training), label_errors(answers)
    assert {suspect.row for suspect in asked} == {suspect.row for suspect in alone}
    assert all(suspect.neighbours is None for suspect in alone)

    def misses(found: list[Any]) -> int:
        """Right labels that stand before the last wrong one of the first forty."""
        return sum(not wrong[~half][suspect.row] for suspect in found[:40])

    assert misses(asked) <= misses(alone)
    planted_rows = [suspect for suspect in asked if wrong[~half][suspect.row]]
    others = [suspect for suspect in asked if not wrong[~half][suspect.row]]
    assert np.mean([suspect.neighbours.margin for suspect in planted_rows]) > 0.8
    assert np.mean([suspect.neighbours.margin for suspect in others]) < 0.5
    scores = [suspect.score for suspect in asked]
    assert scores == sorted(scores, reverse=True)


def test_neighbours_are_known_by_the_names_of_the_data() -> None:
    """A model whose classes are numbers, data that names them: the training images have the data's names."""
    probabilities = np.array([[0.9, 0.1], [0.95, 0.05], [0.2, 0.8], [0.1, 0.9]])
    labels = [(0,), (1,), (1,), (1,)]
    mapping = ClassMapping(("cat", "dog"), ("0", "1"), ((0,), (1,)))
    answers = answers_of(probabilities, labels, features=probabilities.astype(np.float32), mapping=mapping, given=tuple(labels))
    training = Features(np.array([[1, 0], [0, 1]], np.float32), ((1,), (0,)), ("a", "b"), np.arange(2), ("Dog", "Cat"))
    (suspect,) = label_errors(answers, training)
    assert (suspect.row, suspect.suggested) == (1, 0)
    assert suspect.neighbours == (1, 1, 2)


def test_thresholds_by_hand() -> None:
    probabilities = np.array([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0]])
    answers = answers_of(probabilities, [(0,), (0,), (1,), (1,)])
    assert thresholds(answers).tolist() == [pytest.approx(0.7), pytest.approx(0.6), np.inf]
    assert label_errors(answers) == []  # 0.6 of another class is less than what that class usually has


def test_a_class_without_images_is_never_suggested() -> None:
    probabilities = np.array([[0.05, 0.05, 0.9], [0.9, 0.1, 0.0], [0.1, 0.9, 0.0]])
    assert label_errors(answers_of(probabilities, [(0,), (0,), (1,)])) == []


def test_images_without_labels_and_with_several() -> None:
    probabilities = np.array([[0.9, 0.05, 0.05], [0.9, 0.05, 0.05], [0.02, 0.97, 0.01], [0.05, 0.9, 0.05], [0.3, 0.3, 0.4]])
    found = label_errors(answers_of(probabilities, [(0,), (), (0, 1), (1,), (1, 2)]))
    assert [suspect.row for suspect in found] == []
    probabilities[2] = [0.98, 0.01, 0.01]
    found = label_errors(answers_of(probabilities, [(0,), (), (1, 2), (1,), (1, 2)]))
    assert [(suspect.row, suspect.suggested, suspect.given) for suspect in found] == [(2, 0, (1, 2))]


# The table --------------------------------------------------------------------------------------------------------------------


def folder_of(tmp_path: Path, classes: tuple[str, ...]) -> Path:
    root = tmp_path / "photos"
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(2):
            first = "=1+1" if number else "a"
            Image.new("RGB", (8, 8), (number * 50, 0, 0)).save(root / name / f"{first}.png")
    return root


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_is_data_again(tmp_path: Path) -> None:
    """Classes and files with names that a spreadsheet would take for formulas come back as they were."""
    classes = ("=cmd|' -C calc'!A0", "cat", 'élan, "quoted"')
    source = open_data(folder_of(tmp_path, classes)).splits["all"]
    probabilities = np.array([[0.9, 0.05, 0.05]] * 2 + [[0.95, 0.04, 0.01], [0.1, 0.8, 0.1]] + [[0.1, 0.1, 0.8]] * 2)
    data_classes = source.classes
    order = [data_classes.index(name) for name in classes]
    labels = [source.labels(k) for k in range(len(source))]
    probabilities = probabilities[:, np.argsort(order)] if order != [0, 1, 2] else probabilities
    mapping = ClassMapping(data_classes, tuple(f"m{k}" for k in range(3)), ((0,), (1,), (2,)))
    answers = answers_of(
        probabilities,
        labels,
        classes=mapping.model,
        given=tuple(labels),
        mapping=mapping,
        split="all",
        ids=tuple(source.id(k) for k in range(len(source))),
    )
    suspects = label_errors(answers)
    assert [suspect.row for suspect in suspects] == [2]
    out = tmp_path / "out" / "relabel.csv"
    assert write_relabel(out, source, answers, suspects) is None
    rows = read_rows(out)
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(source)
    assert rows[0]["suggested"].strip() == data_classes[suspects[0].suggested]
    assert all(row["new_label"] == "" and not row["suggested"] for row in rows[1:])
    for row in rows:
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row.values())
    again = open_data(out).splits["all"]
    assert again.classes == data_classes
    there = {Path(again.path(k) or "").resolve(): again.labels(k) for k in range(len(again))}
    assert there == {Path(source.path(k) or "").resolve(): source.labels(k) for k in range(len(source))}


def test_images_that_are_no_files(tmp_path: Path) -> None:
    source = Arrays("made", "test", ("a", "b"), np.zeros((2, 4, 4), np.uint8), np.array([0, 1]), ids=("=x", "y"))
    answers = answers_of(np.array([[0.9, 0.1], [0.2, 0.8]]), [(0,), (1,)], ids=("=x", "y"))
    assert write_relabel(tmp_path / "relabel.csv", source, answers, []) == "these images are not files of their own"
    rows = read_rows(tmp_path / "relabel.csv")
    assert [row["id"] for row in rows] == ["'=x", "y"]
    assert [row["path"] for row in rows] == ["", ""]


def test_a_class_that_a_table_cannot_name(tmp_path: Path) -> None:
    source = open_data(folder_of(tmp_path, ("cat; dog", "bird"))).splits["all"]
    labels = [source.labels(k) for k in range(len(source))]
    mapping = ClassMapping(source.classes, source.classes, ((0,), (1,)))
    answers = answers_of(np.full((4, 2), 0.5), labels, given=tuple(labels), mapping=mapping, split="all")
    assert write_relabel(tmp_path / "relabel.csv", source, answers, []) == "the class name 'cat; dog' cannot stand in .csv"


def test_what_the_data_calls_the_models_classes() -> None:
    mapping = ClassMapping(("bike", "clock"), ("mountain bike", "tandem", "wall clock", "other"), ((0, 1), (2,)))
    answers = answers_of(np.full((1, 4), 0.25), [(0, 1)], classes=mapping.model, mapping=mapping, given=((0,),))
    assert class_names(answers) == {0: "bike", 1: "bike", 2: "clock", 3: "other"}
