"""Figures of token norms and token similarity over the layers."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike

from vitreous.inspection.checked_arrays import check_finite
from vitreous.inspection.figure_style import COLOURS, QUIET, chart, drawn, legend_above

_STEEP = 30.0  # times as long as the shortest: beyond, only logarithms show both


@drawn
def plot_token_norms(quantiles: ArrayLike, leading: ArrayLike | None = None) -> Figure:
    """Lengths of tokens after the embedding and after each layer.

    Args:
        quantiles: (depth + 1, 5): of patch tokens the shortest, the quarters and the longest; `norm_quantiles` makes them
        leading: (depth + 1, prefix): of the class token and others before the patches
    """
    values = check_finite(quantiles, "quantiles of token norms", ("depth + 1", "quantiles"))
    before = np.zeros((len(values), 0))
    if leading is not None and np.size(leading):
        before = check_finite(leading, "norms of leading tokens", ("depth + 1", "prefix"))
    figure, axes = chart("Norms of the tokens")
    x = np.arange(len(values)) - 1
    marker = "o" if len(values) <= 26 else None
    axes.fill_between(x, values[:, 0], values[:, 4], color=COLOURS[0], alpha=0.13, lw=0, label="all patches")
    axes.fill_between(x, values[:, 1], values[:, 3], color=COLOURS[0], alpha=0.32, lw=0, label="middle half")
    axes.plot(x, values[:, 4], color=COLOURS[0], lw=0.8, alpha=0.6)
    axes.plot(x, values[:, 2], color=COLOURS[0], lw=2, marker=marker, ms=4, label="median")
    for number in range(before.shape[1]):
        label = "first leading token" if number == 0 else "other leading tokens" if number == 1 else None
        colour = COLOURS[1] if number == 0 else COLOURS[2]
        axes.plot(
            x, before[:, number], color=colour, lw=1.6, ls=_DASHES[number % len(_DASHES)], marker=marker, ms=3, label=label
        )
    everything = np.concatenate([values, before], axis=1)
    if everything.min() > 0 and everything.max() > _STEEP * everything.min():
        axes.set_yscale("log")
        decades = everything.max() / everything.min() > 1000
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if decades else (1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, float(everything.max()) * 1.06 or 1.0)
    axes.set_ylabel("norm of a token (L2)")
    _depth(axes, len(values))
    legend_above(axes, columns=5)
    return figure


_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))


@drawn
def plot_token_similarity(similarity: ArrayLike, change: ArrayLike) -> Figure:
    """Mean cosine between the patches of an image (depth + 1,), and between a token and itself one layer before (depth,)."""
    alike = np.asarray(similarity, np.float64)
    several = not np.isnan(alike).all()  # a model with a single patch has nothing to compare it with
    if several:
        check_finite(alike, "token similarity", ("depth + 1",))
    same = check_finite(change, "token change", ("depth",))
    figure, axes = chart("Similarity of the tokens")
    x = np.arange(len(alike)) - 1
    marker = "o" if len(alike) <= 26 else None
    if several:
        axes.plot(x, alike, color=COLOURS[0], lw=2, marker=marker, ms=4, label="different patches of an image")
    axes.plot(x[1:], same, color=COLOURS[1], lw=2, marker=marker, ms=4, label="a patch and itself one layer before")
    axes.axhline(1, color=QUIET, lw=0.8)
    lowest = float(np.nanmin([*alike, *same]))
    axes.set(ylabel="mean cosine similarity", ylim=(0 if lowest >= 0 else max(-1.05, lowest - 0.08), 1.05))
    _depth(axes, len(alike))
    legend_above(axes)
    return figure


def _depth(axes: Axes, count: int) -> None:
    """The layers by their numbers, from 0, and before them what enters the first."""
    axes.set(xlabel="after layer", xlim=(-1.4, count - 1.6))
    layers = MaxNLocator(nbins=12, integer=True, min_n_ticks=1).tick_values(0, max(1, count - 2))
    places = [-1.0, *(float(place) for place in layers if 0 < place <= count - 2 or (place == 0 and count <= 14))]
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: "embedding" if place < 0 else f"{place:g}"))
    axes.grid(visible=False, axis="x")
