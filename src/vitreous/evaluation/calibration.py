"""Calibration: confidence against accuracy (ECE, Brier score, reliability bins).

Of a head with sigmoid outputs the probability is that of its top class by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15  # as in Guo et al. 2017, and nearly everywhere since: the number changes the error, so it must be the same


@dataclass(frozen=True)
class Calibration:
    ece: float  # the mean distance between confidence and accuracy over bins of equal width, each by its images
    ece_equal_mass: float  # the same over bins of equally many images, which no crowded bin can hide in
    confidence: float  # the mean: above the accuracy, the model is overconfident
    accuracy: float
    brier: float  # mean square of confidence minus 1 where right and 0 where wrong: of the prediction alone, not of all classes
    bins: tuple[dict[str, Any], ...]
    """`low, high, n, confidence, accuracy`: images whose confidence lies above `low` and up to `high`, and the means; of an
    empty one, they are 0."""


def describe_confidence_gap(confidence: float, accuracy: float) -> str:
    """What both means together say, in words."""
    gap = confidence - accuracy
    if abs(gap) < 0.005:
        return "on the whole as confident as it is accurate"
    return f"on the whole {'over' if gap > 0 else 'under'}confident, by {100 * abs(gap):.1f} points"


def compute_calibration(confidence: NDArray[np.floating[Any]], right: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """From the probability of each prediction and whether it was right."""
    sure, correct = confidence.astype(np.float64), right.astype(np.float64)
    edges = np.linspace(0.0, 1.0, bins + 1)
    place = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)  # exactly 0 belongs to the first
    equal_width = [np.flatnonzero(place == k) for k in range(bins)]
    made = tuple(_bin(edges[k], edges[k + 1], sure[rows], correct[rows]) for k, rows in enumerate(equal_width))
    equal_mass = np.array_split(np.argsort(sure, kind="stable"), bins)
    return Calibration(
        ece=_error(sure, correct, equal_width),
        ece_equal_mass=_error(sure, correct, equal_mass),
        confidence=float(sure.mean()),
        accuracy=float(correct.mean()),
        brier=float(np.square(sure - correct).mean()),
        bins=made,
    )


def _bin(low: float, high: float, sure: NDArray[np.float64], correct: NDArray[np.float64]) -> dict[str, Any]:
    means = {name: float(values.mean()) if len(sure) else 0.0 for name, values in (("confidence", sure), ("accuracy", correct))}
    return {"low": float(low), "high": float(high), "n": len(sure), **means}


def _error(sure: NDArray[np.float64], correct: NDArray[np.float64], parts: Sequence[NDArray[np.int64]]) -> float:
    return float(sum(abs(float((sure[rows] - correct[rows]).sum())) for rows in parts) / len(sure))
