"""Overlay an attention map on its image, as in figures 6 and 14 of the paper (appendix D.8).

The authors divide the map by its largest value, bring it to the image's size with Lanczos' filter, blur it with a radius of
one patch, stretch it to 0..1 and use it as a mask. Pillow blurs 8-bit images only, and what it leaves of a map that is nearly
even are a few levels, which stretched show as steps. So its steps are done here in floating point, and nothing is rounded
before the end: the filter's overshoot clipped, and a Gaussian as three boxes, each of which takes the image to go on beyond
its border as it ends.
"""

from __future__ import annotations

import matplotlib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitreous.inspection.checked_arrays import as_rgb, check_finite
from vitreous.reports.images import TINY

HEAT = "magma"  # from black: nothing, to pale yellow: most. Told apart by all eyes, and in grey
_FLAT = 1e-6  # a map that varies by less than this share of itself is flat; stretching it would show rounding errors
_BOXES = 3  # in place of a Gaussian, as in Pillow


def overlay(image: NDArray[np.uint8], map: ArrayLike) -> NDArray[np.uint8]:
    """The image, bright where the map (rows, columns) is high and black where it is lowest; as large as it was.

    A map that is everywhere alike looks at the whole image: nothing is darkened.
    """
    seen = as_rgb(image)
    lit = seen * mask(map, seen.shape[0], seen.shape[1])[..., None]
    return np.asarray(np.rint(lit), np.uint8)


def mask(map: ArrayLike, height: int, width: int) -> NDArray[np.float64]:
    """The map at an image's size, smooth, from 0 to 1."""
    values = check_finite(map, "the attention map", ("rows", "columns"))
    rows, columns = values.shape
    scale = np.abs(values).max()
    if np.ptp(values) <= _FLAT * scale:
        return np.ones((height, width))
    large = _enlarged(_enlarged(values / scale, width).T, height).T
    blurred = _blurred(_blurred(large, width / columns).T, height / rows).T
    lowest, span = blurred.min(), np.ptp(blurred)
    # Where the image has fewer pixels than the map has places, what differs may fall between the pixels.
    return (blurred - lowest) / span if span > _FLAT else np.ones((height, width))


def heat(map: ArrayLike) -> NDArray[np.uint8]:
    """The map in colours, (rows, columns, 3), place by place: from 0, which is black, to its largest value.

    Only a map with negative values begins elsewhere, at its lowest one.
    """
    values = check_finite(map, "the attention map", ("rows", "columns"))
    lowest = min(0.0, float(values.min()))
    span = float(values.max()) - lowest
    share = (values - lowest) / span if span > 0 else np.zeros_like(values)
    coloured = matplotlib.colormaps[HEAT](share, bytes=True)
    return np.asarray(coloured[..., :3], np.uint8)


def fit_image(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """The image in its own shape, as large as fits: a tiny one enlarged by a whole number, each pixel a square."""
    seen = as_rgb(image)
    tall, wide = seen.shape[:2]
    ratio = min(height / tall, width / wide)
    if max(tall, wide) <= TINY and ratio >= 1:
        return np.asarray(seen.repeat(int(ratio), axis=0).repeat(int(ratio), axis=1))
    size = max(1, round(wide * ratio)), max(1, round(tall * ratio))
    return np.asarray(Image.fromarray(seen).resize(size, Image.Resampling.LANCZOS))


def _enlarged(lines: NDArray[np.float64], pixels: int) -> NDArray[np.float64]:
    """Each line by itself, with Lanczos' filter; what it throws above 1, and below 0 or what is lowest, is clipped."""
    image = Image.fromarray(np.ascontiguousarray(lines, np.float32))
    resized = np.asarray(image.resize((pixels, len(lines)), Image.Resampling.LANCZOS), np.float64)
    return resized.clip(min(0.0, lines.min()), 1.0)


def _blurred(lines: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Each line by itself. The boxes' ends are weighted, so that together they have that deviation (Gwosdek et al., 2011)."""
    variance = sigma**2 / _BOXES
    whole = int((np.sqrt(12 * variance + 1) - 1) / 2)  # pixels to each side that count in full
    # The next pixel's part.
    end = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    pixels = lines.shape[1]
    for _ in range(_BOXES):
        beyond = np.pad(lines, ((0, 0), (whole + 1, whole + 1)), mode="edge")
        sums = np.pad(beyond.cumsum(axis=1), ((0, 0), (1, 0)))
        inner = sums[:, 2 * whole + 2 : 2 * whole + 2 + pixels] - sums[:, 1 : 1 + pixels]
        lines = (inner + end * (beyond[:, :pixels] + beyond[:, -pixels:])) / (2 * (whole + end) + 1)
    return lines
