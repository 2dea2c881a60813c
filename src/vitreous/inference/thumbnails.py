"""Small images for a page, from what a data set holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.source import Content
from vitreous.data.transforms.decode import decode
from vitreous.reports.images import SIDE, TINY, EmbeddedImage, embed_image


def embed_thumbnail(content: Content | Path, place: str, side: int = SIDE) -> EmbeddedImage | None:
    """None for an image that cannot be read."""
    try:
        image = decode(content, place=place)
    except VitreousError:
        return None
    if max(image.size) > TINY:
        image.thumbnail((side, side), Image.Resampling.BILINEAR)
    return embed_image(np.asarray(image), side)
