"""Procedural textures: for a rectangle of pixels, where each lies between a surface's first colour (0) and second (1).

As everywhere in the rendered sets, only + - * /, floor and comparisons touch the pixels, so every machine paints the
same; waves are folded lines smoothed by a cubic, not sines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.data.synthetic.random_draws import draw_bytes
from vitreous.data.synthetic.symbols import cosine_sine

Plane = NDArray[np.float32]


@dataclass(frozen=True)
class Texture:
    family: str
    turn: float = 0.0  # its direction, as a fraction of a turn
    frequency: float = 4.0  # repetitions across the image
    phase: float = 0.0
    warp: float = 0.0  # how far cloudy noise bends it, in repetitions
    hardness: float = 1.0  # 1: soft waves; larger: edges
    key: int = 0  # of its noise


def make_cloud(key: int, x: Plane, y: Plane, coarsest: int = 3, octaves: int = 3) -> Plane:
    """Random values on lattices, each twice as fine and half as strong as the last, smoothly joined; 0 to 1."""
    total = np.zeros((len(y), len(x)), np.float32)
    strength = 0.5 / (1 - 0.5**octaves)
    values = draw_bytes(key, sum((coarsest * 2**i + 1) ** 2 for i in range(octaves)))
    for octave in range(octaves):
        cells = coarsest * 2**octave
        lattice = values[: (cells + 1) ** 2].reshape(cells + 1, cells + 1).astype(np.float32) * np.float32(strength / 255)
        values = values[(cells + 1) ** 2 :]
        left, right = _locate_on_lattice(x, cells)
        above, below = _locate_on_lattice(y, cells)
        rows = lattice[:, left]
        rows = rows + (lattice[:, left + 1] - rows) * right
        plane = rows[above]
        plane = plane + (rows[above + 1] - plane) * below[:, None]
        total += plane
        strength /= 2
    return total


def _locate_on_lattice(along: Plane, cells: int) -> tuple[NDArray[np.intp], Plane]:
    """The lattice point before each place, and how far it is on the way to the next, eased."""
    scaled = along.clip(0, 1) * np.float32(cells)
    before = np.minimum(scaled.astype(np.intp), cells - 1)
    return before, _ease(scaled - before.astype(np.float32))


def _ease(share: Plane) -> Plane:
    return share * share * (3 - 2 * share)


def _wave(place: Plane) -> Plane:
    """Period 1, from 0 to 1 and back."""
    return _ease(np.abs(2 * (place - np.floor(place)) - 1))


def _sharpen(value: Plane, hardness: float) -> Plane:
    return value if hardness == 1 else ((value - 0.5) * hardness + 0.5).clip(0, 1)


def _texture_axes(look: Texture, x: Plane, y: Plane) -> tuple[Plane, Plane]:
    """Coordinates along and across the texture's direction, in repetitions, bent by noise."""
    c, s = cosine_sine(look.turn)
    f = look.frequency
    along = (x * (c * f) + look.phase)[None, :] + (y * (s * f))[:, None]
    across = (x * (-s * f))[None, :] + (y * (c * f) + look.phase)[:, None]
    if look.warp:
        bend = make_cloud(look.key, x, y, octaves=2) * np.float32(look.warp)
        along, across = along + bend, across - bend
    return along, across


def _gradient(look: Texture, x: Plane, y: Plane) -> Plane:
    c, s = cosine_sine(look.turn)
    return np.clip(0.5 + (x * c - 0.5 * c)[None, :] + (y * s - 0.5 * s)[:, None], 0, 1)


def _checks(look: Texture, x: Plane, y: Plane) -> Plane:
    along, across = _texture_axes(look, x, y)
    return _sharpen((_wave(along) - 0.5) * (_wave(across) * 2 - 1) + 0.5, look.hardness)


def _dots(look: Texture, x: Plane, y: Plane) -> Plane:
    along, across = _texture_axes(look, x, y)
    along, across = along - np.floor(along) - 0.5, across - np.floor(across) - 0.5
    return np.clip((0.12 - along * along - across * across) * (8 * look.hardness), 0, 1)


def _bricks(look: Texture, x: Plane, y: Plane) -> Plane:
    along, across = _texture_axes(look, x, y)
    row = np.floor(across)
    along = along * 0.5 + 0.5 * (row - 2 * np.floor(row * 0.5))
    edge = np.minimum(across - row, 2 * (along - np.floor(along)))
    return np.clip(edge * (4 * look.hardness), 0, 1)


def _wood(look: Texture, x: Plane, y: Plane) -> Plane:
    """Rings around a point outside the image, drawn out along the grain and bent."""
    along, across = _texture_axes(look, x, y)
    along, across = along * 0.25 + 1, across + 1.5
    return _sharpen(_wave(np.sqrt(along * along + across * across)), look.hardness)


# Values for pixel centres at `x` and `y`, in images: 0 is one edge and 1 the other. Shape (y, x).
FAMILIES: dict[str, Callable[[Texture, Plane, Plane], Plane]] = {
    "flat": lambda look, x, y: np.zeros((len(y), len(x)), np.float32),
    "clouds": lambda look, x, y: _sharpen(make_cloud(look.key, x, y, max(2, int(look.frequency / 2))), look.hardness),
    "gradient": _gradient,
    "stripes": lambda look, x, y: _sharpen(_wave(_texture_axes(look, x, y)[0]), look.hardness),
    "checks": _checks,
    "dots": _dots,
    "bricks": _bricks,
    "wood": _wood,
}
