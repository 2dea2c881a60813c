"""The charts of an evaluation's page: how sure against how right, and accuracy against what befalls pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitreous.evaluation.calibration import leaning
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.robustness import Robustness, RobustnessCurve
from vitreous.reports.curves import Curve, chart
from vitreous.reports.html import scrolled, text


def calibration_section(numbers: Mapping[str, Any]) -> str:
    """Nothing where the numbers do not tell."""
    bins = numbers.get("reliability")
    if not isinstance(bins, Sequence) or not bins:
        return ""
    rows = [row for row in bins if row["n"]]
    said = "How often the model is right, by how sure it was. On the diagonal it is right as often as it says."
    n = max(1, sum(row["n"] for row in rows))
    sure, right = (sum(row["n"] * row[name] for row in rows) / n for name in ("confidence", "accuracy"))
    said += f" This one is {leaning(sure, right)}."
    ece = numbers.get("ece")
    if isinstance(ece, float):
        said += f" Expected calibration error: {100 * ece:.2f} %."
    head = "".join(f'<th scope="col" class="number">{name}</th>' for name in ("sure of", "images", "mean", "right"))
    lines = "".join(
        f'<tr><th scope="row" class="number">{100 * row["low"]:.0f} to {100 * row["high"]:.0f} %</th>'
        f'<td class="number">{row["n"]:,}</td><td class="number">{100 * row["confidence"]:.1f} %</td>'
        f'<td class="number">{100 * row["accuracy"]:.1f} %</td></tr>'
        for row in rows
    )
    table = scrolled("calibration", f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>")
    return (
        f'<p class="quiet">{said}</p><div class="charts">{reliability_chart(rows)}</div>'
        f"<details><summary>The same as numbers</summary>{table}</details>"
    )


def reliability_chart(bins: Sequence[Mapping[str, Any]]) -> str:
    """Bars of accuracy over confidence, each with its 95 % interval, and under them how many images each stands for."""
    left, right, top, bottom, low, high = 56, 432, 10, 190, 200, 236
    most = max(row["n"] for row in bins)

    def x(share: float) -> float:
        return left + (right - left) * share

    def y(share: float) -> float:
        return bottom - (bottom - top) * share

    parts = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{100 * tick:.0f} %</text>')
        anchor = "end" if tick == 1 else "middle"
        parts.append(f'<text x="{x(tick):.1f}" y="{high + 15}" text-anchor="{anchor}">{100 * tick:.0f} %</text>')
    for row in bins:
        begin, width = x(row["low"]) + 1, max(1.0, x(row["high"]) - x(row["low"]) - 2)
        ends = f"{100 * row['low']:.0f} to {100 * row['high']:.0f} %"
        told = f"sure of {ends}: {row['n']:,} images, {100 * row['accuracy']:.1f} % right"
        tall = (bottom - top) * row["accuracy"]
        count = (high - low) * row["n"] / most
        (least, best), middle = wilson(row["accuracy"], row["n"]), begin + width / 2
        parts.append(
            f'<g><title>{text(told)}</title><rect class="share" x="{begin:.1f}" y="{bottom - tall:.1f}" width="{width:.1f}" '
            f'height="{tall:.1f}"/><rect class="count" x="{begin:.1f}" y="{high - count:.1f}" width="{width:.1f}" '
            f'height="{max(count, 0.7):.1f}"/>'
            f'<line class="range" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y(least):.1f}" y2="{y(best):.1f}"/></g>'
        )
    parts.append(f'<line class="ideal" x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}"/>')
    parts.append(f'<text x="{left - 6}" y="{low + 9}" text-anchor="end">{most:,}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{high + 30}" text-anchor="middle">probability of its guess</text>')
    told = "; ".join(f"{100 * row['confidence']:.0f} % sure, {100 * row['accuracy']:.0f} % right" for row in bins)
    return (
        '<figure class="chart"><figcaption><strong>Right, by how sure it was</strong> <span class="quiet">and below, images'
        f'</span></figcaption><svg viewBox="0 0 440 270" role="img" aria-label="{text(told)}">{"".join(parts)}</svg></figure>'
    )


def robustness_section(found: Robustness | None) -> str:
    if found is None:
        return ""
    name, worst = found.worst()
    said = (
        f"Accuracy on {found.clean.n:,} images, drawn once, after each change: {100 * found.clean.accuracy:.1f} % as they are, "
        f"{100 * worst.accuracy:.1f} % at worst ({name} {worst.strength:g}). Dashed: 95 % interval."
    )
    rows = "".join(
        f'<tr><th scope="row">{text(curve.name)}</th><td class="number">{point.strength:g}</td>'
        f'<td class="number">{100 * point.accuracy:.1f} %</td>'
        f'<td class="number">{100 * point.interval[0]:.1f} to {100 * point.interval[1]:.1f}</td></tr>'
        for curve in found.curves
        for point in curve.points
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("change", "strength", "accuracy", "95 % interval"))
    table = scrolled("robustness", f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    charts = "".join(_robustness_chart(curve, found) for curve in found.curves)
    return (
        f'<p class="quiet">{text(said)}</p><div class="charts">{charts}</div>'
        f"<details><summary>The same as numbers</summary>{table}</details>"
    )


def _robustness_chart(curve: RobustnessCurve, found: Robustness) -> str:
    points = [(p.strength, p.accuracy, *p.interval) for p in curve.points]
    if curve.untouched is not None:
        points.append((curve.untouched, found.clean.accuracy, *found.clean.interval))
    strengths, accuracy, low, high = np.array(sorted(points), np.float64).T
    clean = np.full(len(strengths), found.clean.accuracy)
    return chart(
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
