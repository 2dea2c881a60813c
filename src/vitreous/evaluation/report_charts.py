"""Calibration and robustness of an evaluation's report, as charts and as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from vitreous.evaluation.calibration import describe_confidence_gap
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.robustness import Robustness, RobustnessCurve
from vitreous.reports.charts import Curve, line_chart, reliability_chart


def calibration_section(numbers: Mapping[str, Any]) -> dict[str, Any] | None:
    """Summary, chart and bins; None where the numbers do not have it."""
    bins = [{**row, "interval": wilson(row["accuracy"], row["n"])} for row in numbers.get("reliability") or () if row["n"]]
    if not bins:
        return None
    n = sum(row["n"] for row in bins)
    confidence, accuracy = (sum(row["n"] * row[name] for row in bins) / n for name in ("confidence", "accuracy"))
    summary = f"This model is {describe_confidence_gap(confidence, accuracy)}."
    if isinstance(ece := numbers.get("ece"), float):
        summary += f" Expected calibration error: {100 * ece:.2f} %."
    return {"summary": summary, "chart": reliability_chart(bins), "bins": bins}


def robustness_section(found: Robustness) -> dict[str, Any]:
    """Summary, charts and the curves they draw."""
    name, worst = found.worst()
    summary = (
        f"Accuracy on the same {found.clean.n:,} random images after each corruption: "
        f"{100 * found.clean.accuracy:.1f} % as they are, {100 * worst.accuracy:.1f} % at worst ({name} {worst.strength:g}). "
        "Dashed: 95 % interval."
    )
    return {"summary": summary, "charts": [_robustness_chart(curve, found) for curve in found.curves], "curves": found.curves}


def _robustness_chart(curve: RobustnessCurve, found: Robustness) -> Markup | None:
    points = [(p.strength, p.accuracy, *p.interval) for p in curve.points]
    if curve.untouched is not None:
        points.append((curve.untouched, found.clean.accuracy, *found.clean.interval))
    strengths, accuracy, low, high = np.array(sorted(points), np.float64).T
    clean = np.full(len(strengths), found.clean.accuracy)
    return line_chart(
        curve.name.capitalize() if curve.name.islower() else curve.name,
        [
            Curve("accuracy", strengths, accuracy, 0),
            Curve("at least", strengths, low, 0, dashed=True),
            Curve("at most", strengths, high, 0, dashed=True),
            Curve("images as they are", strengths, clean, 2),
        ],
        along=curve.along,
        percent=True,
    )
