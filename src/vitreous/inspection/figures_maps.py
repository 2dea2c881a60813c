"""Figures of attention maps: rollout (6 and 14 of the paper), and each head by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitreous.inspection.checked_arrays import as_rgb, check_finite
from vitreous.inspection.figure_style import MARGIN, QUIET, drawn, letters_in, sheet, short, tile_images
from vitreous.inspection.overlay import fit_image, heat, overlay

_GAP = 6  # pixels between the panels of one image
_BETWEEN = 40  # and between images
_HEADING, _NAME = 24, 30  # heights of words above and below
_WIDEST_ROLLOUTS = 1500  # pixels
_WIDEST, _HIGHEST = 1240, 1240  # of all heads together: with 48 layers each map is still seen
_TILE = 150  # a map's width where there are few
_BLOCKS = 3  # pixels of a place from which it is drawn as a block; smaller ones run into each other anyhow


@drawn
def plot_rollout(
    images: Sequence[NDArray[np.uint8]],
    rollouts: ArrayLike,
    gradient: ArrayLike | None = None,
    names: Sequence[str] | None = None,
) -> Figure:
    """Input and attention side by side, image by image, and beside them the gradient-weighted rollout where it is given.

    Args:
        images: as the model saw them, uint8 (height, width, 3) each; `denormalise` makes them
        rollouts: (images, rows, columns), as `rollout` gives them
        gradient: the same, as `gradient_rollout` gives them
        names: one for each image, written below it
    """
    maps = [check_finite(rollouts, "attention rollout", ("images", "rows", "columns"))]
    if gradient is not None:
        maps.append(check_finite(gradient, "gradient-weighted rollout", ("images", "rows", "columns")))
    headings = ["input", "attention", "with gradients"][: 1 + len(maps)]
    caption = "Bright: from where most has reached the output through all layers (rollout). Each map is stretched by itself."
    if gradient is not None:
        caption += " With gradients: each attention weighted by what it did for the output."

    def panels(index: int, seen: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        return [overlay(seen, values[index]) for values in maps]

    return draw_panels("Where the model looks", caption, headings, images, panels, names)


def draw_panels(
    title: str,
    caption: str,
    headings: Sequence[str],
    images: Sequence[NDArray[np.uint8]],
    panels: Callable[[int, NDArray[np.uint8]], Sequence[NDArray[np.uint8]]],
    names: Sequence[str] | None = None,
) -> Figure:
    """Each image, and beside it panels of the same size, drawn by `panels` from its number and the resized image."""
    count = len(images)
    side = 300 if count <= 3 else 220 if count <= 12 and len(headings) <= 3 else 152
    tall = _common_height([as_rgb(image) for image in images], side)
    own = len(headings) * (side + _GAP) - _GAP  # width of one image's panels
    across = min(
        count, max(1, min(3 if count > 12 else 2 if count > 2 else 1, (_WIDEST_ROLLOUTS + _BETWEEN) // (own + _BETWEEN)))
    )
    below = _NAME if names is not None else 0
    rows = -(-count // across)
    height = _HEADING + rows * (tall + below + _GAP) - _GAP
    page = sheet(title, caption, across * (own + _BETWEEN) - _BETWEEN, height)
    for column in range(across):
        for number, heading in enumerate(headings):
            middle = MARGIN + column * (own + _BETWEEN) + number * (side + _GAP) + side / 2
            page.words(heading, middle, 0, ha="center", color=QUIET)
    for index, image in enumerate(images):
        row, column = divmod(index, across)
        left, top = MARGIN + column * (own + _BETWEEN), _HEADING + row * (tall + below + _GAP)
        seen = fit_image(image, tall, side)
        down, right = (tall - seen.shape[0]) // 2, (side - seen.shape[1]) // 2
        for number, pixels in enumerate([seen, *panels(index, seen)]):
            page.draw_image(pixels, left + number * (side + _GAP) + right, top + down)
        if names is not None:
            page.words(short(names[index], letters_in(own)), left, top + tall + 5)
    return page.figure


@drawn
def plot_attention(image: NDArray[np.uint8], maps: ArrayLike) -> Figure:
    """What every head of every layer looks at, (layers, heads, rows, columns): a column for each layer, a row for each head.

    `attention_by_head` gives such maps, one for each image.
    """
    values = check_finite(maps, "attention maps", ("layers", "heads", "rows", "columns"))
    layers, heads, rows, columns = values.shape
    seen = as_rgb(image)
    gap = 2 if layers > 24 else 4
    shape = seen.shape[0] / seen.shape[1]
    wide = int(max(8, min(_TILE, _WIDEST // layers - gap, (_HIGHEST // heads - gap) / shape)))
    high = max(4, round(wide * shape))
    if min(wide / columns, high / rows) >= _BLOCKS:  # then all of one size
        wide, high = wide // columns * columns, high // rows * rows
    tiles = np.stack([np.stack([_tile(values[layer, head], high, wide) for layer in range(layers)]) for head in range(heads)])
    whole = tile_images(tiles, gap)
    small = fit_image(seen, 200, 200)
    left = MARGIN + small.shape[1] + 56  # room for the heads' numbers
    caption = (
        "A column is a layer, a row a head. Bright: where it looks, each map from 0 to its own largest value. "
        "What looks is the class token, or the mean of all patches where the output is read from those."
    )
    page = sheet(
        "Where every head looks", caption, left - MARGIN + whole.shape[1], max(26 + whole.shape[0], 30 + small.shape[0])
    )
    page.words("input", MARGIN, 2, color=QUIET)
    page.draw_image(small, MARGIN, 26)
    axes = page.draw_image(whole, left, 26)
    axes.xaxis.tick_top()
    step = max(1, -(-26 // (wide + gap)))  # a number needs that many pixels
    axes.set_xticks([wide / 2 + layer * (wide + gap) for layer in range(0, layers, step)], [*map(str, range(0, layers, step))])
    step = max(1, -(-18 // (high + gap)))
    axes.set_yticks([high / 2 + head * (high + gap) for head in range(0, heads, step)], [*map(str, range(0, heads, step))])
    axes.tick_params(labelsize=8)
    return page.figure


def _common_height(images: Sequence[NDArray[np.uint8]], side: int) -> int:
    """Of places `side` wide for images of any shape: that of the middle one."""
    ratio = float(np.median([image.shape[0] / image.shape[1] for image in images]))
    return round(side * min(2.0, max(0.4, ratio)))


def _tile(values: NDArray[np.float64], height: int, width: int) -> NDArray[np.uint8]:
    """A map in colours at that size."""
    rows, columns = values.shape
    if height % rows == 0 and width % columns == 0:
        return heat(values).repeat(height // rows, axis=0).repeat(width // columns, axis=1)
    scaled = Image.fromarray(values.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    return heat(np.asarray(scaled))
