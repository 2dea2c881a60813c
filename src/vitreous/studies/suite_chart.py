"""The chart: a bar for each task, group by group, with the groups' means and the paper's figures as marks (its Figure 2)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from vitreous.core.files import atomic_file
from vitreous.studies.suite_summary import Mean, Summary
from vitreous.studies.suite_table import how

# Okabe and Ito's colours, which people tell apart who do not see red or green; the last one is for the mean of all.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_ALL, _INK, _FAINT = "#4D4D4D", "#222222", "#DDDDDD"
_MARKS = ("D", "o", "^", "s", "v")
_GAP = 0.9  # between groups
_FOOT = 9.0  # percent: lower bars have no room for their number


def write_chart(summary: Summary, folder: Path) -> None:
    """`vtab.png` and `vtab.svg`; equal results give equal bytes."""
    # Words stay words in the SVG, and a $ in a name is a $.
    with matplotlib.rc_context({"svg.hashsalt": "vitreous", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}):
        figure = chart(summary)
        for ending, options in (("png", {"dpi": 150}), ("svg", {"metadata": {"Date": None}})):
            with atomic_file(folder / f"vtab.{ending}") as part:
                figure.savefig(part, format=ending, facecolor="white", bbox_inches="tight", **options)


def chart(summary: Summary) -> Figure:
    bars = _bars(summary)
    figure = Figure(figsize=(max(6.0, 2.2 + 0.5 * len(bars)), 4.4))
    axes = figure.subplots()
    for place, _, mean, colour, whole in bars:
        height = 100 * mean.value
        axes.bar(place, height, 0.78, color=colour if whole else _light(colour), zorder=2, edgecolor=colour)
        if not math.isnan(mean.spread):
            axes.errorbar(place, height, 100 * mean.spread, color=_INK, elinewidth=1.1, capsize=2.5, zorder=4)
        for number, (published, mark) in enumerate(zip(mean.paper, _MARKS, strict=False)):
            beside = 0.2 * (number - (len(mean.paper) - 1) / 2)  # of equal figures, none hides another
            axes.plot(place + beside, published, mark, ms=5, mfc="white", mec=_INK, mew=1.0, zorder=5, clip_on=False)
        # The number stands at the bar's foot: above, it would seem to be one of the marks.
        inside = height >= _FOOT
        axes.annotate(
            f"{height:.1f}", (place, 0 if inside else height), (0, 4), textcoords="offset points", ha="center", zorder=6,
            fontsize=8, fontweight="bold" if whole else "normal", color="white" if inside and whole and _dark(colour) else _INK,
        )  # fmt: skip
    axes.set_xticks([bar[0] for bar in bars], [bar[1] for bar in bars], rotation=40, ha="right", rotation_mode="anchor")
    for label, bar in zip(axes.get_xticklabels(), bars, strict=True):
        label.set_fontweight("bold" if bar[4] else "normal")
    axes.set_xlim(bars[0][0] - 0.7, bars[-1][0] + 0.7)
    axes.set_ylim(0, 100)
    axes.set_ylabel("accuracy on test images (%)")
    axes.yaxis.grid(True, color=_FAINT, lw=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="both", length=0)
    words = f"{summary.suite.name}, {_end(summary.checkpoint, 60)}, {how(summary)}"
    axes.set_title(words, loc="left", fontsize=10.5, pad=22 if summary.suite.paper else 14)
    if summary.suite.paper:
        axes.legend(
            [_handle(mark) for mark, _ in zip(_MARKS, summary.suite.paper, strict=False)],
            [f"paper: {name}" for name in summary.suite.paper],
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=3,
            frameon=False,
            borderaxespad=0.2,
            handletextpad=0.2,
            fontsize=8.5,
        )
    return figure


_Bar = tuple[float, str, Mean, str, bool]  # place, label, value, colour, whether it is a mean


def _bars(summary: Summary) -> list[_Bar]:
    bars: list[_Bar] = []
    place = 0.0
    for number, (group, mean) in enumerate(summary.groups.items()):
        colour = COLOURS[number % len(COLOURS)]
        for score in summary.tasks:
            if score.task.group == group:
                bars.append((place, score.task.shown, score.mean, colour, False))
                place += 1
        if len(summary.groups) > 1:
            bars.append((place, f"{group}, mean", mean, colour, True))
            place += 1
        place += _GAP
    return [*bars, (place, summary.counted, summary.mean, _ALL, True)]


def _end(text: str, most: int) -> str:
    """Of a long path, what tells it from others."""
    return text if len(text) <= most else f"...{text[3 - most :]}"


def _dark(colour: str) -> bool:
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.5


def _light(colour: str) -> tuple[float, float, float]:
    """Half-way to white, and not half transparent: the grid is not to shine through."""
    red, green, blue = to_rgb(colour)
    return 0.5 + red / 2, 0.5 + green / 2, 0.5 + blue / 2


def _handle(mark: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], marker=mark, ls="", ms=5, mfc="white", mec=_INK)
