"""Detect and remove the uniform border of an image: frames, letterboxes, scanner margins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LEVELS = 16  # of 255 in each channel: what compression makes of one colour stays within
STRAY = 0.02  # of the pixels of a line may differ, as where the content reaches over
LEAST = 32  # pixels along the shorter side of what is left: less does not tell images apart
LAYERS = 8  # a border may have a border, and between two colours reducing leaves lines of a third one


def remove_border(image: Image.Image) -> Image.Image | None:
    """The image (RGB) inside its border; None where there is no border, or too little inside it."""
    pixels = np.asarray(image, np.int16)
    top, bottom, left, right = 0, image.height, 0, image.width
    for _ in range(LAYERS):
        inside = pixels[top:bottom, left:right]
        box = _content(inside)
        if box is None:
            break
        top, bottom, left, right = top + box[0], top + box[1], left + box[2], left + box[3]
        if min(bottom - top, right - left) < LEAST:
            return None
    found = (left, top, right, bottom)
    return image.crop(found) if found != (0, 0, *image.size) else None


def _content(pixels: NDArray[np.int16]) -> tuple[int, int, int, int] | None:
    """First and last row and column of what lies inside one even border; None where no side has one."""
    for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        colour = edge.mean(axis=0)
        if _differs(edge, colour).mean() <= STRAY:
            content = _differs(pixels, colour)
            rows, columns = (np.flatnonzero(content.mean(axis=axis) > STRAY) for axis in (1, 0))
            if not len(rows) or not len(columns):
                return 0, 0, 0, 0  # nothing inside
            return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    return None


def _differs(pixels: NDArray[np.int16], colour: NDArray[np.float64]) -> NDArray[np.bool_]:
    far = np.abs(pixels - colour.round().astype(np.int16)) > LEVELS
    return np.asarray(far[..., 0] | far[..., 1] | far[..., 2])  # several times as fast as `any`
