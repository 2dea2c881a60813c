"""Checks of arrays before they are drawn: finite values and the expected shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitreous.core.errors import VitreousError


def check_finite(values: ArrayLike, what: str, axes: Sequence[str]) -> NDArray[np.float64]:
    """The values as an array of those axes, none of them empty, and every value a finite number."""
    array = np.asarray(values, np.float64)
    if array.ndim != len(axes) or not array.size:
        raise VitreousError(f"{what}: shape {array.shape}; expected ({', '.join(axes)}), none of them empty")
    wrong = array.size - int(np.isfinite(array).sum())
    if wrong:
        raise VitreousError(
            f"{what}: {wrong:,} of {array.size:,} values are not finite; the model overflows or its weights are broken, "
            "so run it in float32 or take another checkpoint"
        )
    return array


def as_rgb(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Height x width x 3; grey ones get three equal channels."""
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or not pixels.size:
        raise VitreousError(f"an image of {pixels.dtype} with shape {pixels.shape}: expected uint8 (height, width, 3)")
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
