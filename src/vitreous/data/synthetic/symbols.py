"""The symbols in rendered images: ten shapes (closed outlines) and twenty glyphs (strokes), as distance fields.

No font is used: fonts differ between machines. Each symbol is defined here by points, x to the right and y down, upright
as it stands. Each is moved so that its centre of mass is at 0 and scaled into the unit circle, and becomes a table of
distances, from which the painter reads a symbol of any size, angle and line width. No two are alike after a rotation or
in a mirror, so that turned and flipped images keep their class.

Results are the same on every machine: sines are rounded before use, everything else is + - * / and square root, which
IEEE 754 defines to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Point = tuple[float, float]

TURNS = 4096  # angles are multiples of this part of a turn
REACH = 1.25  # a table covers -REACH..REACH in both directions
CELLS = 96  # of a table, along one side
STROKES_REACH = 0.85  # how far strokes go from the centre; their width takes the rest


@dataclass(frozen=True)
class Symbol:
    name: str
    lines: tuple[tuple[Point, ...], ...]
    closed: bool  # one outline with an inside; otherwise strokes
    points: float | None = None  # where its tip is, clockwise from up, as a fraction of a turn; None: it has no one tip


def cosine_sine(turn: float) -> Point:
    """Of a fraction of a turn, rounded: the mathematical libraries of different machines differ in the last bits."""
    angle = round(turn * TURNS) % TURNS * (2 * math.pi / TURNS)
    return round(math.cos(angle) * 2**20) / 2**20, round(math.sin(angle) * 2**20) / 2**20


def _arc(x: float, y: float, rx: float, ry: float, start: float, end: float, parts: int = 16) -> tuple[Point, ...]:
    """Part of an ellipse, from and to a fraction of a turn: 0 is right, 0.25 is down."""
    turns = [cosine_sine(start + (end - start) * i / parts) for i in range(parts + 1)]
    return tuple((x + rx * c, y + ry * s) for c, s in turns)


def _star(points: int, inner: float) -> tuple[Point, ...]:
    corners = [cosine_sine(i / (2 * points) - 0.25) for i in range(2 * points)]
    return tuple((c * r, s * r) for (c, s), r in zip(corners, [1.0, inner] * points, strict=True))


def _heart() -> tuple[Point, ...]:
    left = _arc(-0.5, -0.4, 0.5, 0.5, 0.42, 1.0, 12)
    right = _arc(0.5, -0.4, 0.5, 0.5, 0.5, 1.08, 12)
    return (*left, *right, (0.0, 1.0))


def _spiral() -> tuple[Point, ...]:
    return tuple((r * c, r * s) for i in range(41) for r in [0.1 + 0.9 * i / 40] for c, s in [cosine_sine(1.75 * i / 40)])


_THIRD = 1 / 3
SHAPES = (
    Symbol("disc", (_arc(0, 0, 1, 1, 0, 1, 40)[:-1],), True),
    Symbol("square", (((-1, -1), (1, -1), (1, 1), (-1, 1)),), True),
    Symbol("triangle", (_star(3, 0.5),), True),
    Symbol("star", (_star(5, 0.42),), True),
    Symbol("cross", (((-_THIRD, -1), (_THIRD, -1), (_THIRD, -_THIRD), (1, -_THIRD), (1, _THIRD), (_THIRD, _THIRD),
                      (_THIRD, 1), (-_THIRD, 1), (-_THIRD, _THIRD), (-1, _THIRD), (-1, -_THIRD), (-_THIRD, -_THIRD)),),
           True),
    Symbol("heart", (_heart(),), True, points=0.5),
    Symbol("crescent", (_arc(0, 0, 1, 1, 0.08, 0.92, 32) + _arc(0.42, 0, 0.68, 0.68, 0.87, 0.13, 24),), True),
    Symbol("arrow", (((0, -1), (0.75, -0.15), (0.28, -0.15), (0.28, 1), (-0.28, 1), (-0.28, -0.15), (-0.75, -0.15)),),
           True, points=0.0),
    Symbol("drop", (((0, -1.1), *_arc(0, 0.3, 0.65, 0.65, -0.07, 0.57, 28)),), True, points=0.0),
    Symbol("fish", ((*_arc(0.25, 0, 0.75, 0.48, 0.56, 1.44, 32), (-1, 0.5), (-0.8, 0), (-1, -0.5)),), True),
)  # fmt: skip

_BOWL = _arc(0.1, -0.5, 0.5, 0.5, -0.25, 0.25)  # of P and R
GLYPHS = (
    Symbol("letter-A", (((-0.7, 1), (0, -1), (0.7, 1)), ((-0.42, 0.25), (0.42, 0.25))), False),
    Symbol("letter-E", (((0.6, -1), (-0.6, -1), (-0.6, 1), (0.6, 1)), ((-0.6, 0), (0.4, 0))), False),
    Symbol("letter-F", (((0.6, -1), (-0.5, -1), (-0.5, 1)), ((-0.5, -0.1), (0.35, -0.1))), False),
    Symbol("letter-G", ((*_arc(0, 0, 0.85, 1, 0.88, 0.0, 24), (0.15, 0)),), False),
    Symbol("letter-H", (((-0.65, -1), (-0.65, 1)), ((0.65, -1), (0.65, 1)), ((-0.65, 0), (0.65, 0))), False),
    Symbol("letter-K", (((-0.6, -1), (-0.6, 1)), ((0.65, -1), (-0.6, 0.2)), ((-0.15, -0.25), (0.7, 1))), False),
    Symbol("letter-M", (((-0.85, 1), (-0.75, -1), (0, 0.3), (0.75, -1), (0.85, 1)),), False),
    Symbol("letter-P", (((-0.5, 1), (-0.5, -1), *_BOWL, (-0.5, 0)),), False),
    Symbol("letter-Q", (_arc(0, -0.1, 0.8, 0.85, 0, 1, 24), ((0.15, 0.25), (0.85, 1))), False),
    Symbol("letter-R", (((-0.5, 1), (-0.5, -1), *_BOWL, (-0.5, 0)), ((0.0, 0), (0.65, 1))), False),
    Symbol("letter-S", (_arc(0, -0.5, 0.6, 0.5, -0.08, -0.75, 16) + _arc(0, 0.5, 0.6, 0.5, -0.25, 0.42, 16),), False),
    Symbol("letter-T", (((-0.75, -1), (0.75, -1)), ((0, -1), (0, 1))), False),
    Symbol("letter-Y", (((-0.7, -1), (0, -0.05), (0.7, -1)), ((0, -0.05), (0, 1))), False),
    Symbol("digit-4", (((0.35, 1), (0.35, -1), (-0.7, 0.4), (0.75, 0.4)),), False),
    Symbol("digit-8", (_arc(0, -0.5, 0.5, 0.5, 0.25, 1.25, 20), _arc(0, 0.5, 0.5, 0.5, -0.25, 0.75, 20)), False),
    Symbol("hash", (((-0.35, -1), (-0.35, 1)), ((0.35, -1), (0.35, 1)), ((-1, -0.35), (1, -0.35)), ((-1, 0.35), (1, 0.35))),
           False),
    Symbol("spiral", (_spiral(),), False),
    Symbol("question-mark", ((*_arc(0, -0.5, 0.5, 0.5, 0.5, 1.2, 16), (0, 0.15), (0, 0.35)), ((0, 0.9), (0, 0.95))), False),
    Symbol("psi", (_arc(0, -1, 0.8, 1.2, 0.5, 0.0, 20), ((0, -1), (0, 1))), False),
    Symbol("phi", (_arc(0, 0, 0.65, 0.5, 0, 1, 24), ((0, -1), (0, 1))), False),
)  # fmt: skip

SYMBOLS = SHAPES + GLYPHS
BAR = len(SYMBOLS)  # not a class: what crosses other things
_BAR = Symbol("bar", (((-1, -0.05), (1, -0.05), (1, 0.05), (-1, 0.05)),), True)


def centre_lines(symbol: Symbol) -> tuple[tuple[Point, ...], ...]:
    """The lines with the centre of mass at 0 and within the unit circle."""
    weight = moment_x = moment_y = 0.0
    for line in symbol.lines:
        ends = line[1:] + line[:1] if symbol.closed else line[1:]
        for (ax, ay), (bx, by) in zip(line, ends, strict=False):
            if symbol.closed:  # the triangle from 0 to this side, signed
                mass, x, y = (ax * by - bx * ay) / 2, (ax + bx) / 3, (ay + by) / 3
            else:
                mass, x, y = math.sqrt((bx - ax) * (bx - ax) + (by - ay) * (by - ay)), (ax + bx) / 2, (ay + by) / 2
            weight, moment_x, moment_y = weight + mass, moment_x + mass * x, moment_y + mass * y
    moved = [[(x - moment_x / weight, y - moment_y / weight) for x, y in line] for line in symbol.lines]
    farthest = max(math.sqrt(x * x + y * y) for line in moved for x, y in line)
    scale = (1.0 if symbol.closed else STROKES_REACH) / farthest
    return tuple(tuple((x * scale, y * scale) for x, y in line) for line in moved)


@cache
def distance_tables() -> NDArray[np.float32]:
    """(symbol, y, x): how far it is to the outline, negative inside; for strokes, to the middle of the nearest one."""
    return np.stack([_compute_distances(symbol) for symbol in (*SYMBOLS, _BAR)])


def _compute_distances(symbol: Symbol) -> NDArray[np.float32]:
    along = (np.arange(CELLS) + 0.5) * (2 * REACH / CELLS) - REACH
    x, y = along[None, :], along[:, None]
    nearest = np.full((CELLS, CELLS), np.inf)
    inside = np.zeros((CELLS, CELLS), bool)
    for line in centre_lines(symbol):
        ends = line[1:] + line[:1] if symbol.closed else line[1:]
        for (ax, ay), (bx, by) in zip(line, ends, strict=False):
            dx, dy = bx - ax, by - ay
            length = dx * dx + dy * dy
            if length == 0:
                continue
            share = np.clip(((x - ax) * dx + (y - ay) * dy) / length, 0, 1)
            far_x, far_y = x - ax - share * dx, y - ay - share * dy
            nearest = np.minimum(nearest, far_x * far_x + far_y * far_y)
            if symbol.closed and dy != 0:  # a ray to the right crosses this side: inside becomes outside
                inside ^= ((ay > y) != (by > y)) & (x < ax + (y - ay) * dx / dy)
    return np.where(inside, -np.sqrt(nearest), np.sqrt(nearest)).astype(np.float32)
