"""Figures of attention distance (7 right and 11 of the paper) and entropy: a dot for every head."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from vitreous.inspection.checked_arrays import check_finite
from vitreous.inspection.figure_style import COLOURS, DPI, INK, QUIET, chart, drawn, legend_above

_AXES = ("layers", "heads")
_ROOM = 0.09  # of the height stays free above and below the dots


@drawn
def plot_attention_distance(
    distance: ArrayLike,
    errors: ArrayLike | None = None,
    image_size: tuple[int, int] | int | None = None,
    uniform: float | None = None,
) -> Figure:
    """Mean attention distance (layers, heads) in pixels; in each layer the heads are sorted, as in the paper.

    Args:
        distance: as `attention_distance` gives it
        errors: standard errors over images, of the same shape; one that is not a number is left out
        image_size: height and width in pixels, for a second scale that compares with models of other sizes
        uniform: the distance of uniform attention, drawn as a line
    """
    values = check_finite(distance, "attention distance", _AXES)
    bars = None if errors is None else np.asarray(errors, np.float64)
    figure, axes = chart("Attention distance of each head", right=32 if image_size is None else 104)
    _dots(figure, axes, values, bars, "looks near", "looks far")
    if uniform is not None:
        axes.axhline(uniform, color=COLOURS[1], lw=1.2, ls=(0, (4, 3)), label="uniform attention", zorder=1)
    top = max(float((values if bars is None else values + np.nan_to_num(bars)).max()), uniform or 0.0)
    axes.set(ylabel="mean attention distance (pixels)", ylim=(0, top * (1 + _ROOM) or 1.0))
    if image_size is not None:
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        across = axes.secondary_yaxis(
            "right", functions=(lambda y: np.asarray(y) * (100 / width), lambda y: np.asarray(y) * (width / 100))
        )
        across.set_ylabel(f"% of the image's {'side' if height == width else 'width'} ({width} pixels)")
        across.spines["right"].set_visible(False)
    legend_above(axes)
    return figure


@drawn
def plot_attention_entropy(entropy: ArrayLike, tokens: int) -> Figure:
    """Entropy of attention (layers, heads) in bits, between one token alone and all `tokens` alike."""
    values = check_finite(entropy, "attention entropy", _AXES)
    figure, axes = chart("Attention entropy of each head")
    _dots(figure, axes, values, None, "looks sharply", "looks widely")
    most = math.log2(tokens)
    label = f"uniform over {tokens:,} tokens ({most:.1f} bits)"
    axes.axhline(most, color=COLOURS[1], lw=1.2, ls=(0, (4, 3)), label=label, zorder=1)
    top = max(most, float(values.max())) or 1.0
    axes.set(ylabel="entropy of attention (bits; 0: one token alone)", ylim=(-_ROOM / 2 * top, top * (1 + _ROOM)))
    legend_above(axes)
    return figure


def _dots(
    figure: Figure, axes: Axes, values: NDArray[np.float64], bars: NDArray[np.float64] | None, low: str, high: str
) -> None:
    layers, heads = values.shape
    order = values.argsort(axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    x = np.arange(layers)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, heads) if heads > 1 else [0.3])
    size = 30 if layers * heads <= 400 else 20
    if layers > 1:
        axes.plot(x, values.mean(axis=1), color=QUIET, lw=1.2, label="mean of the heads" if heads > 1 else None, zorder=2)
    for rank in range(heads):
        if bars is not None:
            spread = np.take_along_axis(bars, order, axis=1)[:, rank]
            known = np.isfinite(spread)
            axes.errorbar(
                x[known], ranked[known, rank], spread[known], fmt="none", ecolor=INK, elinewidth=0.8, alpha=0.5, zorder=3
            )
        axes.scatter(x, ranked[:, rank], s=size, color=[colours[rank]], lw=0.4, edgecolor="white", zorder=4)
    axes.set(xlabel="layer", xlim=(-0.6, layers - 0.4))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=14, integer=True, min_n_ticks=1))
    axes.grid(visible=False, axis="x")
    if heads > 1:
        # A legend of sixteen heads would only say what one strip of colours says.
        width, height = figure.get_size_inches() * DPI
        strip = figure.add_axes((1 - (158 + len(high) * 11) / width, 1 - 38 / height, 120 / width, 12 / height))
        figure.colorbar(ScalarMappable(cmap=ListedColormap(colours)), cax=strip, orientation="horizontal", ticks=[])
        strip.spines[:].set_visible(False)
        for text, place, side in ((low, -0.06, "right"), (high, 1.06, "left")):
            strip.text(place, 0.5, text, transform=strip.transAxes, ha=side, va="center", fontsize=8, color=QUIET)
