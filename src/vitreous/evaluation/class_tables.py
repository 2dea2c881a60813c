"""Per-class tables of a report: precision, recall and F1, the confusion matrix and the most confused pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.counts import PerClass
from vitreous.evaluation.validation_result import ValidationResult

ROWS = 1000
"""Classes in the table; of more, those with the lowest F1."""
CELLS = 40
"""Classes up to which the whole matrix is drawn."""
PAIRS = 25
"""Pairs of classes listed as the most confused."""

Link = Callable[[int, int], str | None]
"""The anchor of the images of (true class, predicted class) on the page; None where none are shown."""


@dataclass(frozen=True)
class ClassTable:
    rows: Sequence[tuple[str, PerClass]]
    """Lowest F1 first."""
    classes: int
    mean: PerClass
    """Over the classes that have images; `n` is how many these are."""


@dataclass(frozen=True)
class MatrixCell:
    count: int
    share: float
    """Of the true class."""
    depth: float
    """Of the colour, from 0 to 1."""
    correct: bool
    anchor: str | None


@dataclass(frozen=True)
class ConfusedPair:
    truth: str
    predicted: str
    count: int
    share: float
    anchor: str | None


@dataclass(frozen=True)
class ConfusionTables:
    classes: Sequence[str]
    matrix: Sequence[Sequence[MatrixCell]]
    """True class by predicted class; empty where there are too many classes to draw it."""
    pairs: Sequence[ConfusedPair]


def per_class(outcome: ValidationResult) -> tuple[PerClass, ...]:
    """As it was counted, or else from the confusion matrix; 0 stands for a share of nothing, as in `Counts`."""
    if outcome.per_class or not outcome.confusion.size:
        return outcome.per_class
    correct, predicted, there = (
        part.tolist() for part in (np.diag(outcome.confusion), *(outcome.confusion.sum(axis=k) for k in (0, 1)))
    )
    return tuple(
        PerClass(c / max(1, p), c / max(1, n), 2 * c / max(1, p + n), n)
        for c, p, n in zip(correct, predicted, there, strict=True)
    )


def class_table(outcome: ValidationResult) -> ClassTable | None:
    """None where nothing was counted per class."""
    every = per_class(outcome)
    there = [row for row in every if row.n]
    if not there:
        return None
    worst = sorted(range(len(every)), key=lambda k: (not every[k].n, every[k].f1, -every[k].n, k))
    precision, recall, f1 = (sum(row[k] for row in there) / len(there) for k in range(3))
    return ClassTable(
        rows=[(outcome.classes[k], every[k]) for k in worst[:ROWS]],
        classes=len(every),
        mean=PerClass(precision, recall, f1, len(there)),
    )


def confused_pairs(confusion: NDArray[np.int64], most: int = PAIRS) -> list[tuple[int, int, int]]:
    """(true class, predicted class, images): the most images first; of equal ones, the larger share of the true class."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    truth, predicted = np.nonzero(wrong)
    count = wrong[truth, predicted]
    share = count / confusion.sum(axis=1)[truth]
    order = np.lexsort((predicted, truth, -share, -count))[:most]
    return [(int(truth[k]), int(predicted[k]), int(count[k])) for k in order]


def confusion_tables(outcome: ValidationResult, link: Link = lambda truth, predicted: None) -> ConfusionTables | None:
    """None where the pairs were not counted."""
    if not outcome.confusion.size:
        return None
    there = outcome.confusion.sum(axis=1).tolist()

    def cell(truth: int, predicted: int, count: int) -> MatrixCell:
        share = count / max(1, there[truth])
        correct = truth == predicted
        # The root, so that a few mistakes are seen, too.
        depth = max(0.06, share if correct else math.sqrt(share))
        return MatrixCell(count, share, depth, correct, link(truth, predicted) if count else None)

    matrix = []
    if len(outcome.classes) <= CELLS:
        matrix = [[cell(t, p, count) for p, count in enumerate(row)] for t, row in enumerate(outcome.confusion.tolist())]
    pairs = list_pairs(outcome.classes, confused_pairs(outcome.confusion), there, link)
    return ConfusionTables(outcome.classes, matrix, pairs)


def list_pairs(
    classes: Sequence[str], pairs: Sequence[tuple[int, int, int]], there: Sequence[int], link: Link
) -> list[ConfusedPair]:
    """`there` is how many images each class has."""
    return [
        ConfusedPair(classes[truth], classes[predicted], count, count / max(1, there[truth]), link(truth, predicted))
        for truth, predicted, count in pairs
    ]
