"""Per-class results and confused classes, as the reports of runs and of evaluations show them (`templates/classes.html`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.counts import PerClass

ROWS = 1000
"""Classes in the table; of more, those with the lowest F1."""
CELLS = 40
"""Classes up to which the whole matrix is drawn."""
PAIRS = 25
"""Pairs of classes listed as the most confused."""

Cell = tuple[int, int]
"""True class and predicted class."""
Link = Callable[[Cell], str | None]
"""The anchor of the images of a cell on the page; None where none are shown."""


def class_table(classes: Sequence[str], per_class: Sequence[PerClass]) -> dict[str, Any] | None:
    """The lowest F1 first, and the means over the classes that have images; None where nothing was counted per class."""
    there = [row for row in per_class if row.n]
    if not there:
        return None
    worst = sorted(zip(classes, per_class, strict=True), key=lambda entry: (not entry[1].n, entry[1].f1, -entry[1].n))
    precision, recall, f1 = (sum(row[k] for row in there) / len(there) for k in range(3))
    return {"rows": worst[:ROWS], "classes": len(classes), "mean": PerClass(precision, recall, f1, len(there))}


def count_cells(confusion: NDArray[np.int64]) -> dict[Cell, int]:
    """The cells of a confusion matrix that are not empty."""
    truth, predicted = np.nonzero(confusion)
    return dict(zip(zip(truth.tolist(), predicted.tolist(), strict=True), confusion[truth, predicted].tolist(), strict=True))


def rank_confusions(cells: Mapping[Cell, int], most: int = PAIRS) -> list[Cell]:
    """The wrong cells with the most images first; of equal ones, the larger share of the true class."""
    totals = _count_truths(cells)
    wrong = [cell for cell in cells if cell[0] != cell[1]]
    return sorted(wrong, key=lambda cell: (-cells[cell], -cells[cell] / totals[cell[0]], cell))[:most]


def confusion_tables(
    classes: Mapping[int, str], cells: Mapping[Cell, int], link: Link = lambda cell: None
) -> dict[str, Any] | None:
    """The confusion matrix of these classes, where they are few, and the most confused pairs; None where none were counted."""
    if not cells:
        return None
    shown = {"matrix": len(classes) <= CELLS, "pairs": rank_confusions(cells), "link": link}
    return {"classes": classes, "cells": cells, "totals": _count_truths(cells), **shown}


def _count_truths(cells: Mapping[Cell, int]) -> Counter[int]:
    totals: Counter[int] = Counter()
    for (truth, _), count in cells.items():
        totals[truth] += count
    return totals
