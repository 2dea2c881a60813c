"""The figure of a data map: a point for each image, coloured by class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from vitreous.inspection.checked_arrays import check_finite
from vitreous.inspection.figure_style import COLOURS, QUIET, chart, drawn, short

# Twelve that are told apart; with more classes they come again, with another mark.
_MANY = (*COLOURS[:7], "#6fa8dc", "#e0a04a", "#7fbf7b", "#c49ad6", "#404040")
_MARKS = ("o", "s", "^", "D")
_UNKNOWN = "#b9bec6"
_NAMED = 12
_METHODS = {"tsne": "t-SNE", "pca": "principal components"}
_PIXELS_FROM = 5000  # points; beyond, an SVG would hold megabytes of circles


@drawn
def plot_data_map(points: ArrayLike, labels: ArrayLike, classes: Sequence[str], method: str) -> Figure:
    """Points (n, 2) as `project` gives them, with labels (n,), -1 where there is none.

    Every class has its colour; beyond twelve classes the twelve most frequent are named.
    """
    places = check_finite(points, "points of the data map", ("images", "coordinates"))
    numbers = np.asarray(labels, np.int64)
    title = f"Map of {len(places):,} image{'s' * (len(places) > 1)} by {_METHODS.get(method, method)}"
    figure, axes = chart(title, 1240, 860, left=48, top=64, right=310, bottom=48)
    order = np.random.default_rng(0).permutation(len(places))  # else the last class would lie over all others
    size = float(np.clip(6000 / len(places), 5, 36))
    known = numbers[order] >= 0
    marks = numbers[order] // len(_MANY) % len(_MARKS)
    parts = [(order[~known], "o"), *((order[known & (marks == number)], mark) for number, mark in enumerate(_MARKS))]
    for own, mark in parts:
        if len(own):
            colours, flat = [_colour(int(label)) for label in numbers[own]], len(places) > _PIXELS_FROM
            axes.scatter(places[own, 0], places[own, 1], s=size, c=colours, marker=mark, alpha=0.8, lw=0, rasterized=flat)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])
    if method == "pca":
        axes.set(xlabel="first component", ylabel="second component")
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color("#dcd9d0")
    axes.margins(0.06)
    present, counts = np.unique(numbers[numbers >= 0], return_counts=True)
    named = present[np.argsort(-counts, kind="stable")][:_NAMED]
    entries = [
        (short(classes[label], 24), _handle(_MARKS[label // len(_MANY) % len(_MARKS)], _colour(label)))
        for label in (named if len(present) > _NAMED else present).tolist()
    ]
    if len(present) > _NAMED:
        entries.append((f"and {len(present) - _NAMED:,} more classes", _handle("", QUIET)))
    if (numbers < 0).any():
        entries.append(("no label", _handle("o", _UNKNOWN)))
    handles, blanks = [handle for _, handle in entries], ["-"] * len(entries)
    legend = axes.legend(handles, blanks, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, handletextpad=0.2)
    for place, (name, _) in zip(legend.get_texts(), entries, strict=True):
        place.set_text(name)  # afterwards: a label that begins with _ would be left out
    return figure


def _colour(label: int) -> str:
    return _UNKNOWN if label < 0 else _MANY[label % len(_MANY)]


def _handle(mark: str, colour: str) -> Line2D:
    return Line2D([], [], marker=mark, ls="", ms=6, mfc=colour, mec="none")
