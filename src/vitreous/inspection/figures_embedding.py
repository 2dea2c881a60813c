"""Figures of embedding filters and position-embedding similarity (figures 7 left, 7 centre, 10)."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from vitreous.inspection.checked_arrays import check_finite
from vitreous.inspection.figure_style import FAINT, MARGIN, SIMILAR, drawn, sheet, tile_images

_FILTER = 96  # pixels, about, that a filter is wide
_MOST_TILES = 16  # in each direction
_WIDE = 1000  # pixels of all tiles together, about
_STRIP = 120, 560  # the colour bar's height, at least and at most
_TILE, _NARROW = 150, 30  # pixels of one at most, where there are few, and at least


@drawn
def plot_filters(filters: ArrayLike, components: bool = True) -> Figure:
    """Filters (k, height, width, channels), each scaled by itself; the paper's 28 in four rows.

    Args:
        filters: as `filters` gives them
        components: False for the kernels of a hybrid's or a ResNet's first convolution, which have no order
    """
    from vitreous.inspection.embedding_filters import as_images

    values = check_finite(filters, "filters", ("filters", "height", "width", "channels"))
    images = as_images(values.astype(np.float32))
    count, height, width, _ = images.shape
    across = count if count <= 7 else math.ceil(math.sqrt(count * 7 / 4))
    factor = max(1, round(_FILTER / max(height, width)))
    edge = round(255 * to_rgb(FAINT)[0])  # a thin line: the white of a filter would else run into the paper's
    large = np.pad(images.repeat(factor, 1).repeat(factor, 2), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=edge)
    tiles = np.full((-(-count // across) * across, *large.shape[1:]), 255, np.uint8)
    tiles[:count] = large
    whole = tile_images(tiles.reshape(-1, across, *tiles.shape[1:]), 8)
    if components:
        title = f"Embedding filters: the first {f'{count} principal components' if count > 1 else 'principal component'}"
        caption = "The strongest first, row by row. Each is scaled by itself."
    else:
        title, caption = "Kernels of the first convolution", "Each is scaled by itself."
    page = sheet(title, caption, whole.shape[1], whole.shape[0], least=700)
    page.draw_image(whole, MARGIN, 0)
    return page.figure


@drawn
def plot_position_similarity(similarity: ArrayLike) -> Figure:
    """Cosine similarity (rows, columns, rows, columns): at each place of the grid a tile that compares it with all places.

    Of large grids every few places have a tile, which the title says; each tile shows all places.
    """
    values = check_finite(similarity, "position similarity", ("rows", "columns", "rows", "columns"))
    rows, columns = values.shape[:2]
    gap = 3
    down, across = (_chosen(n, min(_MOST_TILES, max(1, int(1.25 * _WIDE) // (n + gap)))) for n in (rows, columns))
    side = max(1, round(min(_WIDE / max(len(down) * rows, len(across) * columns), _TILE / max(rows, columns))))
    tall, wide = (max(side, -(-_NARROW // n)) for n in (rows, columns))  # pixels of a place; one row alone must be seen too
    shown = values[np.ix_(down, across)].repeat(tall, axis=2).repeat(wide, axis=3)
    scale, colours = Normalize(-1, 1), matplotlib.colormaps[SIMILAR]
    whole = tile_images(np.asarray(colours(scale(shown), bytes=True)[..., :3], np.uint8), gap)
    title = "Similarity of position embeddings"
    if len(down) < rows or len(across) < columns:
        title += f": {len(down)} × {len(across)} of {rows} × {columns} places"
    caption = (
        "A tile stands at its place in the grid and shows the cosine similarity of its embedding with that of every place."
    )
    page = sheet(title, caption, 64 + whole.shape[1] + 126, max(whole.shape[0], _STRIP[0]) + 52, least=620)
    left = MARGIN + 64 + max(0, page.width - 2 * MARGIN - 190 - whole.shape[1]) // 2
    axes = page.draw_image(whole, left, 0)
    for places, extent, ticks in ((across, columns * wide, axes.set_xticks), (down, rows * tall, axes.set_yticks)):
        ticks([extent / 2 + n * (extent + gap) for n in range(len(places))], [str(place + 1) for place in places])
    low = whole.shape[0] < 220  # no room for long words along the side
    axes.set(xlabel="column of the patch", ylabel="row" if low else "row of the patch")
    axes.tick_params(labelsize=8)
    height = min(max(whole.shape[0], _STRIP[0]), _STRIP[1])
    strip = page.axes(left + whole.shape[1] + 24, max(0, whole.shape[0] - height) / 2, 18, height)
    bar = page.figure.colorbar(
        ScalarMappable(scale, colours), cax=strip, ticks=[-1, 0, 1] if height < 300 else [-1, -0.5, 0, 0.5, 1]
    )
    bar.set_label("cosine" if low else "cosine similarity")
    bar.outline.set_visible(False)
    return page.figure


def _chosen(count: int, most: int) -> NDArray[np.int64]:
    """Places as even as can be, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.rint(np.linspace(0, count - 1, most)).astype(np.int64)) if most > 1 else np.array([count // 2])
