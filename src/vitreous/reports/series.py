"""Metrics over steps as arrays: read from records, thinned for a chart, smoothed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

POINTS = 1000
"""Of one curve. Of more, the lowest and highest of each of 500 stretches are kept, so that no spike is lost."""


def number(value: object) -> float:
    """A JSON value as a number; NaN for null, text, what else is none, and what no axis could hold."""
    drawable = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e300
    return float(value) if drawable else math.nan  # type: ignore[arg-type]


def read_series(history: Sequence[Mapping[str, Any]], key: str, split: str | None = None) -> tuple[Floats, Floats]:
    """Steps and values of a metric, in order. A step that was recorded twice, before and after a resume, counts once."""
    found: dict[float, float] = {}
    for record in history:
        step = number(record.get("step"))
        if key in record and math.isfinite(step) and (split is None or record.get("split") == split):
            found[step] = number(record[key])
    steps = np.array(sorted(found), dtype=np.float64)
    return steps, np.array([found[step] for step in steps], dtype=np.float64)


def thin(steps: Floats, values: Floats, most: int = POINTS) -> tuple[Floats, Floats]:
    """At most so many points: the extremes of equal stretches, the first and the last."""
    if len(steps) <= most:
        return steps, values
    kept = {0, len(steps) - 1}
    for stretch in np.array_split(np.arange(1, len(steps) - 1), most // 2 - 1):
        finite = stretch[np.isfinite(values[stretch])]
        if len(finite):
            kept |= {int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])}
        else:
            # The gap stays a gap.
            kept.add(int(stretch[0]))
    chosen = np.array(sorted(kept))
    return steps[chosen], values[chosen]


def running_mean(values: Floats, reach: int) -> Floats:
    """The mean of the finite values up to `reach` to either side; NaN where there are none."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    at = np.arange(len(values))
    low, high = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(values))
    number_of = counts[high] - counts[low]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(number_of > 0, (sums[high] - sums[low]) / number_of, np.nan)
