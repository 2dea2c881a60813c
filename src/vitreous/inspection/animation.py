"""An animation of what the class token attends to, layer by layer."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from vitreous.core.files import atomic_file
from vitreous.inspection.checked_arrays import check_finite
from vitreous.inspection.overlay import fit_image, overlay

_FRAME = 400  # milliseconds for a layer
_REST = 1600  # and for the last one, before it begins again
_SIDE = 320  # pixels of the image, at most
_MARGIN, _STRIP = 12, 46
_INK, _QUIET, _LINE, _MARK = "#1d2129", "#5d6675", "#dcd9d0", "#2457a6"


def animation(image: NDArray[np.uint8], maps: ArrayLike, path: Path) -> None:
    """The image, and beside it what each layer's map (layers, rows, columns) lights up, as WebP.

    It repeats for ever, with the layer's number below. Each layer's map is stretched by itself, as a still one is.
    """
    first, *rest = frames(image, maps)
    durations = [_FRAME] * len(rest) + [_REST]
    with atomic_file(path) as part:
        first.save(part, format="WEBP", save_all=True, append_images=rest, duration=durations, loop=0, quality=82, method=4)


def frames(image: NDArray[np.uint8], maps: ArrayLike) -> list[Image.Image]:
    """One for each layer, all of the same size."""
    values = check_finite(maps, "the attention maps", ("layers", "rows", "columns"))
    seen = fit_image(image, _SIDE, _SIDE)
    return [_frame(seen, values[layer], layer, len(values)) for layer in range(len(values))]


def _frame(seen: NDArray[np.uint8], map: NDArray[np.float64], layer: int, layers: int) -> Image.Image:
    height, width = seen.shape[:2]
    # Both sides even, which some players need.
    size = (2 * width + 3 * _MARGIN + 1) // 2 * 2, (height + 2 * _MARGIN + _STRIP + 1) // 2 * 2
    frame = Image.new("RGB", size, "white")
    frame.paste(Image.fromarray(seen), (_MARGIN, _MARGIN))
    left, below = 2 * _MARGIN + width, _MARGIN + height
    frame.paste(Image.fromarray(overlay(seen, map)), (left, _MARGIN))
    draw = ImageDraw.Draw(frame)
    draw.text((left, below + 8), f"layer {layer}" + (f" of 0–{layers - 1}" if layers > 1 else ""), fill=_INK, font=_font(15))
    # How far the layer is on its way, for those who look at the image and not at the number.
    bar = below + 36
    draw.rectangle((left, bar, left + width - 1, bar + 5), fill=_LINE)
    draw.rectangle((left, bar, left + max(1, round(width * (layer + 1) / layers)) - 1, bar + 5), fill=_MARK)
    draw.text((_MARGIN, below + 8), "input", fill=_QUIET, font=_font(15))
    return frame


def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), size)
