"""`builtin:letters`: rendered images of printed letters, light on dark, as small as handwritten digits are.

What they are for: to pre-train a model for marks on paper where only a few of them have labels. No digit is among the
classes, so whatever the digits gain from it was learnt from other signs. The fonts come with matplotlib. Which letter, font
and pose an image has is a function of (seed, index), as for all rendered sets; the pixels are FreeType's, and another
version of it may shade an edge differently.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from vitreous.data.synthetic.generated import Generated
from vitreous.data.synthetic.random_draws import Draws, draw_bytes, draw_uniform

IMAGES = {"train": 50_000, "validation": 5_000, "test": 5_000}

# Upper-case letters, and the lower-case ones that are not just smaller: c and C have one shape, a and A two.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghijlmnqrty"
_FONTS = (
    *(f"DejaVu{kind}.ttf" for kind in ("Sans", "Sans-Bold", "Sans-Oblique", "Sans-BoldOblique")),
    *(f"DejaVuSansMono{kind}.ttf" for kind in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{kind}.ttf" for kind in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{kind}.ttf" for kind in ("", "Bol", "Italic", "BolIta")),
    *(f"{name}.ttf" for name in ("cmb10", "cmr10", "cmss10", "cmti10", "cmtt10")),
)
_CANVAS = 64  # pixels of the drawing from which small images are reduced; large ones are drawn at twice their size
_DRAWS = 16  # numbers an image may use; the label's is the first of them


class Letters(Generated):
    """One split. An image is drawn when it is read."""

    task = "letters"
    scene = 1 << 20  # far from the scenes' numbers, so that no draw is shared with them
    edition = 1
    classes = tuple(f"{'small' if letter.islower() else 'capital'}-{letter}" for letter in LETTERS)

    def read(self, index: int) -> NDArray[np.uint8]:
        key = int(self._keys(self._check_index(index), 1)[0])
        return _draw_letter(self.labels(index)[0], Draws(key, 1, _DRAWS), self.size)

    def _labels(self, first: int, count: int) -> NDArray[np.int64]:
        return (draw_uniform(self._keys(first, count), 0) * len(LETTERS)).astype(np.int64)[:, None]


def _draw_letter(letter: int, draw: Draws, size: int) -> NDArray[np.uint8]:
    canvas = max(_CANVAS, 2 * size)
    ink = _draw_ink(letter, draw.below(len(_FONTS)), canvas)

    # Stretched to fill most of the image, as one would cut out a sign; then turned, slanted and moved a little.
    height, width = draw.between(0.78, 0.98) * canvas, draw.between(0.45, 0.9) * canvas
    narrow = ink.width < 0.45 * ink.height  # I and l stay narrow
    across = (draw.between(0.2, 0.4) * canvas if narrow else width) / ink.width
    up = height / ink.height
    turn, slant = math.radians(draw.between(-12, 12)), draw.between(-0.25, 0.25)
    x, y = (canvas * (0.5 + draw.between(-0.05, 0.05)) for _ in range(2))
    cosine, sine = math.cos(turn), math.sin(turn)
    a, b = cosine / across, (sine + slant * cosine) / across  # from a place of the image back to a place of the ink
    c, d = -sine / up, (cosine - slant * sine) / up
    place = (a, b, ink.width / 2 - a * x - b * y, c, d, ink.height / 2 - c * x - d * y)
    image = ink.transform((canvas, canvas), Image.Transform.AFFINE, place, Image.Resampling.BILINEAR)

    thick = draw.below(4)  # a thin or a broad pen
    if thick < 2:
        image = image.filter(ImageFilter.MaxFilter(5 if thick else 3))
    image = image.filter(ImageFilter.GaussianBlur(draw.between(0, 0.03) * canvas))
    image = image.resize((size, size), Image.Resampling.BOX)
    light, dark = draw.between(170, 255), draw.between(0, 30)
    noise = draw_bytes(draw.key(), size * size).reshape(size, size).astype(np.float64) / 255 - 0.5
    shade = np.asarray(image, np.float64)
    shade /= max(1.0, float(shade.max()))  # a thin line, a fraction of a pixel wide, is as light as a broad one
    values = dark + (light - dark) * shade + draw.between(0, 24) * noise
    return np.clip(np.round(values), 0, 255).astype(np.uint8)


@functools.lru_cache(maxsize=2048)
def _draw_ink(letter: int, font: int, canvas: int) -> Image.Image:
    """The letter alone, cut out at its edges."""
    drawn = _load_font(font, canvas)
    left, top, right, bottom = drawn.getbbox(LETTERS[letter])
    edge = 2
    image = Image.new("L", (int(right - left) + 2 * edge, int(bottom - top) + 2 * edge))
    ImageDraw.Draw(image).text((edge - left, edge - top), LETTERS[letter], fill=255, font=drawn)
    return image


@functools.lru_cache(maxsize=64)
def _load_font(font: int, canvas: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _FONTS[font]), canvas)
