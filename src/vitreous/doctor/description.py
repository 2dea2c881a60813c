"""Descriptors of images: unit vectors of low spatial frequencies, seen through a window.

What a window leaves out at each edge stands for a crop: seen through the right one, a cropped, mirrored or turned copy has
almost the same description as the middle of its original. All windows lie inside the image, whichever of the two was cropped.

Legend: N images, S pixels along a side, W windows, D numbers in a description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

EDGE = 0.05  # the share of each side that a crop may remove
SHORT, LONG = 8, 14  # 35 and 104 numbers: to look images up by, and to tell them apart


@dataclass(frozen=True)
class Window:
    rows: tuple[float, float]  # left out above and below
    columns: tuple[float, float]  # left out on the left and on the right
    mirrored: bool  # after turning
    turns: int = 0  # quarter turns, against the clock


def _windows() -> tuple[Window, ...]:
    """Enough windows that any crop is within about half of EDGE of one of them."""
    less, more = EDGE * 0.4, EDGE * 1.6
    edges = ((EDGE, EDGE), (less, less), (less, more), (more, less), (more, more))
    crops = [(rows, columns) for rows in edges for columns in edges]
    # Cutting something off every side moves everything at once: such copies are farthest from the windows above.
    crops += [((edge, edge), (edge, edge)) for edge in (EDGE * 0.1, EDGE * 1.9)]
    upright = [Window(rows, columns, mirrored) for mirrored in (False, True) for rows, columns in crops]
    # Copies that were turned are seldom cut, too: fewer windows keep the look-up cheap.
    even = [((edge, edge), (edge, edge)) for edge in (EDGE * 0.1, EDGE, EDGE * 1.9)]
    turned = [Window(*edges, mirrored, turns) for turns in (1, 2, 3) for mirrored in (False, True) for edges in even]
    return (*upright, *turned)


CENTRAL = Window((EDGE, EDGE), (EDGE, EDGE), False)
WINDOWS = _windows()


def describe_images(greys: Floats, windows: tuple[Window, ...], order: int = SHORT) -> Floats:
    """(N, W, D) unit vectors of images (N, S, S)."""
    chosen, weight = _waves(order)
    odd = np.nonzero(chosen)[1] % 2 == 1
    out = np.empty((len(greys), len(windows), len(weight)), np.float32)
    for turns in {window.turns for window in windows}:
        places = [place for place, window in enumerate(windows) if window.turns == turns]
        edges = sorted({edge for w in (windows[p] for p in places) for edge in (w.rows, w.columns, w.columns[::-1])})
        lines = np.concatenate([_cosines(*edge, greys.shape[-1], order) for edge in edges]).astype(np.float32)
        waves = lines @ np.rot90(greys, turns, axes=(1, 2)) @ lines.T
        waves = waves.reshape(len(greys), len(edges), order, len(edges), order)
        for place in places:
            window = windows[place]
            # A mirrored image has the same even waves, the negative odd ones, and its left where the right was.
            columns = window.columns[::-1] if window.mirrored else window.columns
            sign = np.where(odd & window.mirrored, -1, 1)
            out[:, place] = waves[:, edges.index(window.rows), :, edges.index(columns), :][:, chosen] * (weight * sign)
    return np.asarray(out / np.maximum(np.linalg.norm(out, axis=2, keepdims=True), 1e-9))


def orient(images: Floats, windows: Sequence[Window]) -> Floats:
    """Images (N, ..., S, S), each turned and mirrored as its window has it."""
    out = images.copy()
    for turns, mirrored in {(window.turns, window.mirrored) for window in windows} - {(0, False)}:
        rows = [row for row, window in enumerate(windows) if (window.turns, window.mirrored) == (turns, mirrored)]
        turned = np.rot90(images[rows], turns, axes=(-2, -1))
        out[rows] = turned[..., ::-1] if mirrored else turned
    return out


def tangents(greys: Floats, window: Window) -> Floats:
    """(N, 5, D of LONG): for each image, orthonormal vectors that span its description and what small crops make of it.

    Another image's description lies near that plane if it is a copy, although the window is only roughly right.
    """
    greys = orient(greys, [window] * len(greys))
    chosen, weight = _waves(LONG)
    rows, columns = (_moving_cosines(*edge, greys.shape[-1]) for edge in (window.rows, window.columns))
    waves = (rows @ greys @ columns.T).reshape(len(greys), 3, LONG, 3, LONG)
    moves = [waves[:, i, :, j, :][:, chosen] * weight for i, j in ((0, 0), (1, 0), (2, 0), (0, 1), (0, 2))]
    span = np.stack(moves, axis=1)
    span /= np.linalg.norm(span, axis=2, keepdims=True) + 1e-9
    products = (span @ span.swapaxes(1, 2)).astype(np.float64) + 1e-4 * np.eye(5)
    return np.asarray(np.linalg.solve(np.linalg.cholesky(products), span.astype(np.float64)), np.float32)


def _waves(order: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which pairs of frequencies are kept, and their weights.

    Photographs have the less of a frequency the higher it is. The weight evens that out, but only half, because a crop
    disturbs high frequencies more.
    """
    row, column = np.mgrid[:order, :order]
    chosen = (row + column < order) & (row + column > 0)
    return chosen, np.hypot(row, column)[chosen] ** 0.5


def _cosines(before: float, after: float, side: int, order: int) -> NDArray[np.float64]:
    """(order, S): the mean of each cosine wave over each pixel, the waves laid from `before` to 1 - `after`."""
    bounds = (np.clip(np.arange(side + 1) / side, before, 1 - after) - before) / (1 - before - after)
    number = np.arange(1, order)[:, None]
    waves = np.sin(np.pi * number * bounds) / (np.pi * number) * np.sqrt(2)
    return np.diff(np.concatenate([bounds[None], waves]), axis=1)


def _moving_cosines(before: float, after: float, side: int) -> Floats:
    """(3 * LONG, S): the waves, and how they change when one end or the other moves."""
    step = EDGE / 5
    change = [
        _cosines(before + step * b, after + step * a, side, LONG) - _cosines(before - step * b, after - step * a, side, LONG)
        for b, a in ((1, 0), (0, 1))
    ]
    return np.concatenate([_cosines(before, after, side, LONG), *change]).astype(np.float32)
