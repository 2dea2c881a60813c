"""Images for the tests: smooth colours with edges, so that filters and JPEG behave as on photographs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def photo(height: int = 60, width: int = 80, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.array(image)
    top, left = rng.integers(0, height // 2), rng.integers(0, width // 2)
    pixels[top : top + height // 3, left : left + width // 3] = rng.integers(0, 256, 3)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, format: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def write(path: Path, image: Image.Image | None = None, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or photo(24, 32, seed=sum(map(ord, path.name)))).save(path, **options)
    return path
