"""The figure of a study: means over seeds with 95 % intervals, as lines over a numeric axis or as a point for each arm."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from vitreous.inspection.figure_style import COLOURS, FAINT, INK, QUIET, drawn
from vitreous.studies.statistics import paired_t
from vitreous.studies.study import Axes, Point, Study

_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


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
        interval = (max(0.0, mean.low), min(100.0, mean.high)) if mean.seeds > 1 else (None, None)
        points.append(Point(str(own[0].get(axes.series, "")), x, mean.effect, *interval))
    return points


@drawn
def draw_study(study: Study, points: Sequence[Point], subtitle: str) -> Figure:
    axes_of = study.axes
    wide = 7.2 if axes_of.x is not None else max(5.0, 1.6 + 0.8 * len(points))
    figure = Figure(figsize=(wide, 4.4), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(point.series for point in points))
    for number, name in enumerate(names):
        own = [point for point in points if point.series == name]
        colour, mark = COLOURS[number % len(COLOURS)], _MARKS[number % len(_MARKS)]
        if axes_of.x is not None:
            own.sort(key=lambda point: float(point.x))
            axes.plot([float(p.x) for p in own], [p.y for p in own], color=colour, lw=1.4, zorder=2)
        for place, point in enumerate(own):
            x = float(point.x) if axes_of.x is not None else points.index(point)
            if point.low is not None and point.high is not None:
                axes.plot([x, x], [point.low, point.high], color=colour, lw=1.6, solid_capstyle="round", zorder=3)
            axes.plot(x, point.y, mark, color=colour, ms=7, mec="white", mew=0.8, zorder=4, label=name if not place else None)
    if axes_of.x is None:
        axes.set_xticks(range(len(points)), [str(point.x) for point in points], rotation=30, ha="right", rotation_mode="anchor")
        axes.set_xlim(-0.6, len(points) - 0.4)
    else:
        ticks = sorted({float(point.x) for point in points})
        if axes_of.log:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
        # Labels of points that nearly coincide, as those of arms with matched FLOPs, would lie on each other.
        apart = [x for number, x in enumerate(ticks) if not number or x > 1.15 * ticks[number - 1]]
        axes.set_xticks(apart if axes_of.log else ticks)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:.1e}".replace("e+", "e"))
        axes.set_xlabel(axes_of.x_label)
        if len(names) > 1:
            axes.legend()
    axes.set_ylabel(axes_of.y_label)
    axes.grid(axis="y", color=FAINT)
    lines = textwrap.wrap(subtitle, int(12.5 * wide))
    axes.set_title(f"{study.title} ({study.paper})", loc="left", fontsize=11, color=INK, pad=8 + 11 * len(lines))
    axes.text(0, 1.015, "\n".join(lines), transform=axes.transAxes, fontsize=8.5, color=QUIET, va="bottom")
    return figure
