"""JPEG files for loaders and cold starts: drawn, or the user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vitreous.core.errors import VitreousError

_DRAWN = 100


def draw_photographs(folder: Path, count: int) -> None:
    """Soft shapes with grain, 500 x 375, in ten class folders: about as many bytes as photographs have.

    A hundred are drawn; of more, the others are links to them.
    """
    rng = np.random.default_rng(0)
    for number in range(count):
        target = folder / f"class{number % 10}" / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        if number >= _DRAWN:
            target.symlink_to(folder / f"class{number % 10}" / f"{number % _DRAWN}.jpg")
            continue
        soft = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        pixels = np.asarray(soft) + rng.normal(0, 4, (375, 500, 1))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target, quality=90)


def link_photographs(source: Path, folder: Path) -> None:
    """The JPEG files of a folder of class folders, at the place where the contenders look."""
    found = sorted(path for path in source.glob("*/*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        raise VitreousError(f"--data {source}: no JPEG files in class folders, as cats/1.jpg; give a folder that has them")
    for path in found:
        target = folder / path.parent.name / f"{path.stem}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path.resolve())
