"""Images inside a page, as data URIs."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 160
"""Pixels of the longer side of a thumbnail."""
TINY = 64
"""Images up to this side are kept to the pixel and enlarged without blur."""


@dataclass(frozen=True)
class EmbeddedImage:
    uri: str
    pixelated: bool = False


@dataclass(frozen=True)
class Figure:
    """An image with what stands under it."""

    image: EmbeddedImage
    alt: str
    caption: str
    label: str = ""
    about: str = ""


def embed_image(pixels: NDArray[np.uint8], side: int = SIDE) -> EmbeddedImage:
    """(height, width[, 1 or 3]) as an image of a page, made small if it is large."""
    return EmbeddedImage(image_uri(pixels, side), pixelated=max(pixels.shape[:2]) <= TINY)


def image_uri(pixels: NDArray[np.uint8], side: int = SIDE) -> str:
    image = Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    # JPEG would blur an image of a few pixels.
    tiny = max(image.size) <= TINY
    image.thumbnail((side, side), Image.Resampling.BILINEAR)
    return encode_image(image, "PNG") if tiny else encode_image(image, "JPEG", quality=80)


def encode_image(image: Image.Image, kind: str, **options: object) -> str:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return data_uri(kind.lower(), out.getvalue())


def data_uri(kind: str, content: bytes) -> str:
    """An address that holds the image itself: `kind` is png, jpeg or webp."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
