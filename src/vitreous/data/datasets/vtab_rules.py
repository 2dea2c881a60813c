"""The rules by which VTAB turns annotations into classes.

Distances become the last threshold that lies below them. They are compared in single precision, because the benchmark's
own data set keeps them so: a distance of 8.0000000001 is 8 there, and not beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError

Numbers = NDArray[np.int64]


def bin_by_thresholds(distances: NDArray[Any], thresholds: Sequence[float]) -> Numbers:
    """The number of the last threshold below each distance; -1 where none is."""
    edges, values = np.asarray(thresholds, np.float32), np.asarray(distances).astype(np.float32)
    return np.searchsorted(edges, values, side="left").astype(np.int64) - 1


def bin_evenly(values: NDArray[Any], original: int, bins: int) -> Numbers:
    """floor(value / (original / bins)), in whole numbers."""
    return np.asarray(values, np.int64) * bins // original


def check_labels(where: str, names: Sequence[str], labels: Numbers, classes: int) -> Numbers:
    """The labels, if all of them are classes; `names` are the items'."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise VitreousError(
            f"{where}: {names[wrong[0]]} gives label {labels[wrong[0]]} of {classes} classes ({len(wrong):,} such items); "
            f"another file than the original, or damaged"
        )
    return labels
