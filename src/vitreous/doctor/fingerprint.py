"""The fingerprint of an image for near-duplicate search: 1,732 bytes, whatever its size.

    grey      SIZE x SIZE, stretched to the full range: brightness and contrast are gone, faint images keep their detail
    colour    blue and red difference, TINT x TINT each: the same garment in another colour is another image
    facts     contrast before stretching, width : height, and the sides of the image, up to 255

An image without structure (one colour, or nearly) is `flat`: it resembles every other flat one, so it is never compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.doctor.border import remove_border

Prints: TypeAlias = NDArray[np.uint8]
"""(N, LENGTH): one fingerprint a row."""


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Of many items: one row each and, behind it, one more for an item that has a border: the same without it."""

    rows: Prints
    items: NDArray[np.int64]  # (K,): whose each row is, in ascending order

    @property
    def trimmed(self) -> NDArray[np.bool_]:
        return np.concatenate([np.zeros(1, bool), self.items[1:] == self.items[:-1]])[: len(self.items)]

    def of(self, items: NDArray[np.bool_]) -> Fingerprints:
        """Of the items for which a mask is true."""
        chosen = items[self.items]
        return self if chosen.all() else Fingerprints(self.rows[chosen], self.items[chosen])


SIZE = 40  # 5 % cropped from a side moves it by two pixels, which alignment sees well; 2 KB an image would allow 44
TINT = 8
LENGTH = SIZE * SIZE + 2 * TINT * TINT + 4
FLAT = 2.0  # grey levels of standard deviation; below it, what is left is noise, a vignette or a compression artefact

_TINTS = SIZE * SIZE
_FACTS = LENGTH - 4


def compute_fingerprints(image: Image.Image) -> list[NDArray[np.uint8]]:
    """Of one upright image and, where it has a border, of what lies inside."""
    inside = remove_border(image)
    return [compute_fingerprint(image)] + ([compute_fingerprint(inside)] if inside is not None else [])


def compute_fingerprint(image: Image.Image) -> NDArray[np.uint8]:
    """The fingerprint of one upright image. Pass it reduced (to 128 pixels or more) where decoding can do that."""
    out = np.empty(LENGTH, np.uint8)
    colours = image.convert("YCbCr")
    # In floats: the mean of many pixels is finer than one grey level, and a faint image needs that.
    luma = colours.getchannel(0).convert("F").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    grey = np.asarray(luma, np.float32)
    grey = grey - grey.mean()
    extreme = max(float(np.abs(grey).max()), 1e-6)
    out[:_TINTS] = np.rint(128 + grey.ravel() * (127 / extreme))
    tints = np.asarray(colours.resize((TINT, TINT), Image.Resampling.BOX))
    out[_TINTS:_FACTS] = tints[:, :, 1:].transpose(2, 0, 1).ravel()
    width, height = image.size
    shape = 128 + 16 * math.log2(width / height)
    facts = (2 * float(grey.std()), shape, width, height)
    out[_FACTS:] = [min(255, max(0, round(fact))) for fact in facts]
    return out


def greys(prints: Prints) -> NDArray[np.float32]:
    """(N, SIZE, SIZE), around zero."""
    return prints[:, :_TINTS].reshape(-1, SIZE, SIZE).astype(np.float32) - 128


def tints(prints: Prints) -> NDArray[np.float32]:
    """(N, 2, TINT, TINT), zero where there is no colour."""
    return prints[:, _TINTS:_FACTS].reshape(-1, 2, TINT, TINT).astype(np.float32) - 128


def shapes(prints: Prints) -> NDArray[np.float32]:
    """Binary logarithm of width : height, within -8 and 8."""
    return np.asarray((prints[:, _FACTS + 1].astype(np.float32) - 128) / 16, np.float32)


def sides(prints: Prints) -> NDArray[np.int64]:
    """The shorter side in pixels, at most 255: how much detail there can be."""
    return np.asarray(prints[:, _FACTS + 2 :].min(axis=1), np.int64)


def is_flat(prints: Prints) -> NDArray[np.bool_]:
    """Which images have too little structure to be told from one another."""
    return np.asarray(prints[:, _FACTS] < 2 * FLAT)
