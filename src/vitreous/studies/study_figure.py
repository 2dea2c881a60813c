"""The figure of a study: means over seeds with 95 % intervals, as lines over a numeric axis or as a point for each arm."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes as Drawing
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from vitreous.inspection.figure_style import COLOURS, DPI, FAINT, INK, QUIET, drawn, letters_in
from vitreous.studies.statistics import paired_t
from vitreous.studies.study import Axes, Point, Study

_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_FEW = 6  # values of x that are written at the axis themselves
FEWEST = 3  # seeds with an interval: that of two is 13 times as wide as they are apart
_DODGE = 0.12  # of the distance between labels, between series that share them
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def mean_points(axes: Axes, rows: Sequence[dict[str, object]]) -> list[Point]:
    """One point for each arm, in the order of the rows."""
    arms: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        if row["role"] == "main" and row.get(axes.y) is not None and (axes.x is None or row.get(axes.x) is not None):
            arms.setdefault(str(row["arm"]), []).append(row)
    points = []
    for arm, own in arms.items():
        mean = paired_t([100 * float(str(row[axes.y])) for row in own])
        x = arm if axes.x is None else sum(float(str(row[axes.x])) for row in own) / len(own)
        # A percentage that no run can have is not drawn.
        interval = (max(0.0, mean.low), min(100.0, mean.high)) if mean.seeds >= FEWEST else (None, None)
        points.append(Point(str(own[0].get(axes.series, "")), x, mean.effect, *interval))
    return points


def draw_study(study: Study, points: Sequence[Point], subtitle: str) -> Figure:
    return draw_points(f"{study.title} ({study.paper})", study.axes, points, subtitle)


@drawn
def draw_points(title: str, axes_of: Axes, points: Sequence[Point], subtitle: str, bars: str | None = None) -> Figure:
    """A line for each series over a numeric x, or its points over the labels. The series `bars` is drawn as such."""
    labels = list(dict.fromkeys(str(point.x) for point in points))  # where x is no number
    names = list(dict.fromkeys(point.series for point in points))
    shared = axes_of.x is None and len(labels) < len(points)
    wide = 7.2 if axes_of.x is not None else max(6.4, 1.6 + (0.8 if bars is None else 0.5) * len(labels))
    figure = Figure(figsize=(wide, 4.4), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(names):
        own = [point for point in points if point.series == name]
        colour, mark = COLOURS[number % len(COLOURS)], _MARKS[number % len(_MARKS)]
        if axes_of.x is not None:
            own.sort(key=lambda point: float(point.x))
            axes.plot([float(p.x) for p in own], [p.y for p in own], color=colour, lw=1.4, zorder=2)
        aside = _DODGE * (number - (len(names) - 1) / 2) if shared and name != bars else 0
        for place, point in enumerate(own):
            x = float(point.x) if axes_of.x is not None else labels.index(str(point.x)) + aside
            if point.low is not None and point.high is not None:
                axes.plot([x, x], [point.low, point.high], color=colour, lw=1.6, solid_capstyle="round", zorder=3)
            if name == bars:
                axes.bar(x, point.y, 0.78, color=colour, alpha=0.35, label=name if not place else None, zorder=1)
                continue
            axes.plot(x, point.y, mark, color=colour, ms=7, mec="white", mew=0.8, zorder=4, label=name if not place else None)
    if axes_of.x is None:
        axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_xlim(-0.6, len(labels) - 0.4)
    else:
        axes.set_xlabel(axes_of.x_label)
        _mark_values(axes, sorted({float(point.x) for point in points}), axes_of.log)
    if len(names) > 1 and bars is not None:
        figure.legend(loc="outside lower center", ncols=4)
    elif len(names) > 1 and (shared or axes_of.x is not None):  # a point with a label of its own needs no legend
        axes.legend()
    axes.set_ylabel(axes_of.y_label)
    axes.grid(axis="y", color=FAINT)
    lines = textwrap.wrap(subtitle, letters_in(DPI * (wide - 0.8)))
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=7 + 11 * len(lines))
    axes.text(0, 1.015, "\n".join(lines), transform=axes.transAxes, fontsize=8.5, color=QUIET, va="bottom")
    return figure


def _mark_values(axes: Drawing, values: Sequence[float], log: bool) -> None:
    """Ticks at the values themselves where they are few and apart; arms with matched FLOPs nearly coincide."""
    apart = [x for number, x in enumerate(values) if not log or not number or x > 1.15 * values[number - 1]]
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if log and len(apart) > _FEW:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axes.set_xticks(apart)
    axes.xaxis.set_major_formatter(lambda value, _: _describe(value))


def _describe(value: float) -> str:
    """As 0.003, 12,800 or 2 × 10¹²: the figures' text is never read as mathematics."""
    if 1e-4 <= value < 1e6:
        return f"{value:,.6g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return power if float(mantissa) == 1 else f"{float(mantissa):g} × {power}"
