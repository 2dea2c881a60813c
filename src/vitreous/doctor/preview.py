"""Previews of what the training preprocessing makes of the smallest and the largest image."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.decode import decode
from vitreous.data.transforms.image import to_image
from vitreous.data.transforms.ops import CentralCrop, InceptionCrop, RandomCrop, Resize, ResizeSmall, SizedOp
from vitreous.data.transforms.parse import Preprocess
from vitreous.doctor.findings import RequiredSize
from vitreous.doctor.scan import Scan

DRAWS = 4  # images shown of a preprocessing that is random


@dataclass(frozen=True, eq=False)
class Preview:
    which: str  # smallest, largest, typical
    item: int
    original: Image.Image | None
    outcomes: tuple[Image.Image, ...]
    scale: str  # by how much it is enlarged or reduced
    failure: str = ""


def find_required_size(preprocess: Preprocess) -> RequiredSize | None:
    """The size that the first operation on shape asks for."""
    for op in preprocess.ops:
        if isinstance(op, SizedOp):
            return RequiredSize(op.height, op.width, enlarges=not isinstance(op, (CentralCrop, RandomCrop)))
    return None


def make_previews(scan: Scan, preprocess: Preprocess) -> tuple[Preview, ...]:
    items = np.flatnonzero(scan.usable() & (scan.records["problem"] == b""))
    if not len(items):
        return ()
    area = scan.records["width"][items].astype(np.int64) * scan.records["height"][items]
    chosen = {"smallest": int(items[area.argmin()]), "largest": int(items[area.argmax()])}
    if area.min() == area.max():
        chosen = {"typical": int(items[0])}  # all are of one size
    return tuple(_make_preview(scan, which, item, preprocess) for which, item in chosen.items())


def _make_preview(scan: Scan, which: str, item: int, preprocess: Preprocess) -> Preview:
    width, height = (int(scan.records[side][item]) for side in ("width", "height"))
    scale = _describe_scale(preprocess, height, width)
    original = None
    try:
        original = decode(scan.read(item), place=scan.id(item))
        draws = DRAWS if preprocess.random else 1
        outcomes = tuple(to_image(preprocess.transform(original, random.Random(draw))) for draw in range(draws))
    except VitreousError as error:
        return Preview(which, item, original, (), scale, str(error))
    return Preview(which, item, original, outcomes, scale)


def _describe_scale(preprocess: Preprocess, height: int, width: int) -> str:
    for op in preprocess.ops:
        if isinstance(op, InceptionCrop):
            whole = math.sqrt(op.height * op.width / (height * width))
            least, most = (_format_factor(whole / math.sqrt(share)) for share in (op.largest, op.smallest))
            return f"{least} to {most}, by the part that is cut"
        if isinstance(op, Resize):
            down, across = op.height / height, op.width / width
            return (
                _format_factor(down)
                if math.isclose(down, across, rel_tol=0.02)
                else f"{_format_factor(down)} down, {_format_factor(across)} across"
            )
        if isinstance(op, ResizeSmall):
            return _format_factor(max(op.height / height, op.width / width))
        if isinstance(op, (CentralCrop, RandomCrop)):
            return "not scaled: cut out as it is"
    return "not scaled"


def _format_factor(factor: float) -> str:
    return f"×{factor:.2f}" if factor < 10 else f"×{factor:.0f}"
