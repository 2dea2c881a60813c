"""RandAugment as the AugReg models were trained with it: each layer picks one of sixteen operations, evenly.

The numbers are those of big_vision's `randaug(LAYERS,MAGNITUDE)`, which took them from TensorFlow's AutoAugment, and the
pixels are those of its TensorFlow code, not of Pillow's namesakes. What surprises there is kept, because the released
models saw it, and their magnitudes (0, 10, 15, 20) only mean something together with it:

    magnitude   10 is where the tables were drawn up, not a limit. More is not always stronger, less not always weaker:
                0 inverts (Solarize), keeps one bit (Posterize) and leaves a tenth of the brightness or colour
    Solarize    the threshold, magnitude x 25.6, was a byte and wrapped round: 10 and 20 invert, 15 solarises at 128
    Posterize   keeps magnitude x 0.4 bits; none, and more than eight, were clamped to a shift by seven: one bit is left
    Contrast    scales around (number of pixels) / 256, not around the mean grey; that is 196 for 224 x 224, and white
                from 256 x 256 on
    Translate, Cutout   pixels, chosen for images of about 224: neither grows with the image

Geometry takes the nearest pixel and paints what comes from outside in mid-grey; arithmetic cuts the fraction off.
A grey image is treated as a colour image with three equal channels. Sharpness leaves images below 3 x 3 as
they are. The same `rng` state always gives the same image; only `rng.random()` is used, whose values Python guarantees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageFilter, ImageOps

from vitreous.core.errors import VitreousError

Table: TypeAlias = NDArray[np.float32] | NDArray[np.int64]
"""The new value of each of the 256 bytes; may have a fraction, or lie outside 0..255."""

GREY = 128  # what moved or cut-out pixels are replaced by
BYTES: NDArray[np.int64] = np.arange(256, dtype=np.int64)
MOST = 100  # people use up to 30; more than this is a typing error


def randaugment(image: Image.Image, layers: int, magnitude: float, rng: Random) -> Image.Image:
    """`layers` operations one after another, each drawn at random, all with the same magnitude. Size and mode stay."""
    check_randaugment(layers, magnitude)
    if image.mode not in ("RGB", "L"):
        raise VitreousError(f"randaug works on 8-bit RGB or grey images, not on mode {image.mode}; decode the image first")
    operations = tuple(OPERATIONS.values())
    for _ in range(layers):
        operation = operations[int(rng.random() * len(operations))]
        argument = operation.argument(magnitude / 10)
        if operation.either_way and rng.random() < 0.5:
            argument = -argument
        image = operation.apply(image, argument, rng)
    return image


def check_randaugment(layers: int, magnitude: float) -> None:
    """Refuses what cannot be meant, before an image is at hand."""
    if layers < 0 or not 0 <= magnitude <= MOST:
        raise VitreousError(f"randaug({layers},{magnitude:g}): needs layers >= 0, a magnitude in 0..{MOST}, as randaug(2,10)")


@dataclass(frozen=True)
class Operation:
    apply: Callable[[Image.Image, float, Random], Image.Image]
    argument: Callable[[float], float] = lambda level: 0.0  # from the magnitude over 10
    either_way: bool = False  # the argument is negated half of the time


def _auto_contrast(image: Image.Image) -> Image.Image:
    """Each channel stretched to 0..255, in single precision: in double, some values would land one higher."""
    tables: list[Table] = []
    for band in image.split():
        low, high = np.asarray(band.getextrema(), np.float32)
        scale = np.float32(255) / (high - low) if high > low else np.float32(0)
        tables.append(BYTES.astype(np.float32) * scale + -low * scale if scale else BYTES)
    return _apply_tables(image, *tables)


def _color(image: Image.Image, factor: float) -> Image.Image:
    """Towards or away from grey: TensorFlow's grey, which scales to 255.5 and cuts off where Pillow adds a half."""
    if image.mode == "L":
        return image
    red, green, blue = (weight * 255.5 / 255 for weight in (0.2989, 0.5870, 0.1140))
    grey = image.convert("L", (red, green, blue, -0.5))
    return Image.blend(grey.convert("RGB"), image, factor)


def _sharpness(image: Image.Image, factor: float) -> Image.Image:
    """Away from a blurred copy whose outermost pixels are the original's.

    Pillow's filter adds a half to round; taking it off again, but for half a step (1/26) against float error, cuts off.
    """
    blurred = image.filter(ImageFilter.Kernel((3, 3), (1, 1, 1, 1, 5, 1, 1, 1, 1), 13, -0.5 + 1 / 26))
    return Image.blend(blurred, image, factor)


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    right, bottom = image.width - 1, image.height - 1
    return _transform_affine(
        image,
        (cos, -sin, (right - cos * right + sin * bottom) / 2),
        (sin, cos, (bottom - sin * right - cos * bottom) / 2),
    )


def _cutout(image: Image.Image, reach: float, rng: Random) -> Image.Image:
    """A square of twice `reach` around a pixel anywhere in the image; what hangs over the edge is lost."""
    y, x = int(rng.random() * image.height), int(rng.random() * image.width)
    left, top = max(0, x - int(reach)), max(0, y - int(reach))
    right, bottom = min(image.width, x + int(reach)), min(image.height, y + int(reach))
    cut = image.copy()
    if right > left and bottom > top:
        cut.paste(_grey_fill(image), (left, top, right, bottom))
    return cut


def _posterized(bits: int) -> Table:
    shift = min((8 - bits) % 256, 7)  # the byte wraps round, then the shift is clamped
    return BYTES >> shift << shift


def _apply_tables(image: Image.Image, *tables: Table) -> Image.Image:
    """A new value for each byte: one table for all channels, or one for each. Fractions are truncated."""
    joined = np.concatenate(tables if len(tables) > 1 else tables * len(image.getbands()))
    return image.point(np.clip(joined, 0, 255).astype(np.uint8).tolist())


def _blend_table(centre: int, factor: float) -> Table:
    """A blend with one value everywhere, as a table; single precision decides where a fraction is truncated."""
    return np.float32(centre) + np.float32(factor) * (BYTES - centre).astype(np.float32)


def _transform_affine(image: Image.Image, across: tuple[float, float, float], down: tuple[float, float, float]) -> Image.Image:
    """Each pixel (x, y) from the one nearest to (across, down), which are (a, b, c) for ax + by + c.

    Pillow counts from the corner of a pixel, TensorFlow from its middle; the halves go from one to the other.
    """
    (a, b, c), (d, e, f) = across, down
    matrix = (a, b, c + 0.5 - (a + b) / 2, d, e, f + 0.5 - (d + e) / 2)
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=_grey_fill(image))


def _up_at_ties(image: Image.Image) -> float:
    """A shear by 0.3 meets the exact middle of two pixels in every tenth line, and there TensorFlow goes up.

    Pillow adds the slope up in steps of 1/65536, which alone would decide it; this is the most by which that errs.
    """
    return max(image.size) / 131072


def _grey_fill(image: Image.Image) -> int | tuple[int, int, int]:
    return GREY if image.mode == "L" else (GREY, GREY, GREY)


def _enhancement(level: float) -> float:
    return level * 1.8 + 0.1


OPERATIONS: Mapping[str, Operation] = {
    "AutoContrast": Operation(lambda image, _, rng: _auto_contrast(image)),
    "Equalize": Operation(lambda image, _, rng: ImageOps.equalize(image)),  # whole numbers only, and TensorFlow's
    "Invert": Operation(lambda image, _, rng: ImageChops.invert(image)),
    "Rotate": Operation(lambda image, degrees, rng: _rotate(image, degrees), lambda level: level * 30, either_way=True),
    "Posterize": Operation(lambda image, bits, rng: _apply_tables(image, _posterized(int(bits))), lambda level: int(level * 4)),
    "Solarize": Operation(
        lambda image, threshold, rng: _apply_tables(image, np.where(int(threshold) % 256 > BYTES, BYTES, 255 - BYTES)),
        lambda level: int(level * 256),
    ),
    "Color": Operation(lambda image, factor, rng: _color(image, factor), _enhancement),
    "Contrast": Operation(
        lambda image, factor, rng: _apply_tables(image, _blend_table(min(image.width * image.height // 256, 255), factor)),
        _enhancement,
    ),
    "Brightness": Operation(lambda image, factor, rng: _apply_tables(image, _blend_table(0, factor)), _enhancement),
    "Sharpness": Operation(lambda image, factor, rng: _sharpness(image, factor), _enhancement),
    "ShearX": Operation(
        lambda image, slope, rng: _transform_affine(image, (1, slope, _up_at_ties(image)), (0, 1, 0)),
        lambda level: level * 0.3,
        either_way=True,
    ),
    "ShearY": Operation(
        lambda image, slope, rng: _transform_affine(image, (1, 0, 0), (slope, 1, _up_at_ties(image))),
        lambda level: level * 0.3,
        either_way=True,
    ),
    "TranslateX": Operation(
        lambda image, pixels, rng: _transform_affine(image, (1, 0, pixels), (0, 1, 0)),
        lambda level: level * 100,
        either_way=True,
    ),
    "TranslateY": Operation(
        lambda image, pixels, rng: _transform_affine(image, (1, 0, 0), (0, 1, pixels)),
        lambda level: level * 100,
        either_way=True,
    ),
    "Cutout": Operation(_cutout, lambda level: int(level * 40)),
    "SolarizeAdd": Operation(
        lambda image, addition, rng: _apply_tables(image, np.where(BYTES < 128, BYTES + int(addition), BYTES)),
        lambda level: int(level * 110),
    ),
}
