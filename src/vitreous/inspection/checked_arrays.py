"""Checks of arrays before they are drawn: finite values and the expected shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitreous.core.errors import VitreousError


def check_finite(values: ArrayLike, what: str, axes: Sequence[str], size: Sequence[int | None] = ()) -> NDArray[np.float64]:
    """The values as an array of those axes and, where it says so, of that size; every one of them a finite number."""
    array = check_shape(values, what, axes, size)
    wrong = array.size - int(np.isfinite(array).sum())
    if wrong:
        raise VitreousError(
            f"{what}: {wrong:,} of {array.size:,} values are not finite; the model overflows or its weights are broken, "
            "so run it in float32 or take another checkpoint"
        )
    return array


def check_shape(values: ArrayLike, what: str, axes: Sequence[str], size: Sequence[int | None] = ()) -> NDArray[np.float64]:
    """The same without the look at each number."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise VitreousError(f"{what}: expected an array of numbers ({', '.join(axes)})") from None
    fits = array.ndim == len(axes) and all(w is None or w == n for w, n in zip(size, array.shape, strict=False))
    if not fits or not array.size:
        wanted = ", ".join(f"{n} {axis}" if n is not None else axis for n, axis in zip(_all(size, axes), axes, strict=True))
        raise VitreousError(f"{what}: shape {array.shape}; expected ({wanted}), none of them empty")
    return array


def as_rgb(picture: NDArray[Any]) -> NDArray[np.uint8]:
    """Height x width x 3; grey ones get three equal channels."""
    pixels = np.asarray(picture)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or not pixels.size:
        raise VitreousError(f"an image of {pixels.dtype} with shape {pixels.shape}: expected uint8 (height, width, 3)")
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _all(size: Sequence[int | None], axes: Sequence[str]) -> list[int | None]:
    return [*size, *[None] * (len(axes) - len(size))]
