"""Paint a scene into pixels, with arithmetic that gives the same bytes on every machine (see `symbols`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitreous.data.synthetic.random_draws import draw_bytes
from vitreous.data.synthetic.scenes import Colour, Scene, Surface, Thing
from vitreous.data.synthetic.symbols import BAR, CELLS, REACH, SHAPES, cosine_sine, distance_tables
from vitreous.data.synthetic.textures import FAMILIES, Plane


def paint(scene: Scene, size: int) -> NDArray[np.uint8]:
    """Pixels, size x size x 3."""
    places = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(1 / size)
    canvas = _fill_surface(scene.ground, places, places)  # (3, y, x)
    softness = scene.softness * max(1.0, size / 64)
    for thing in scene.things:
        _paint_thing(canvas, thing, places, softness)
    turn, strength = scene.light
    c, s = cosine_sine(turn)
    canvas *= 1 + ((places - 0.5) * (c * strength))[None, :] + ((places - 0.5) * (s * strength))[:, None]
    if scene.noise:
        grain = draw_bytes(scene.key, 3 * size * size).reshape(canvas.shape)
        canvas += (grain.astype(np.float32) - 127.5) * (scene.noise * 2 / 255)
    return np.ascontiguousarray((canvas.clip(0, 1) * 255 + 0.5).astype(np.uint8).transpose(1, 2, 0))


def _fill_surface(surface: Surface, x: Plane, y: Plane) -> Plane:
    """(3, y, x)"""
    first, second = _as_column(surface.first), _as_column(surface.second)
    return FAMILIES[surface.look.family](surface.look, x, y) * (second - first) + first


def _as_column(colour: Colour) -> Plane:
    return np.array(colour, np.float32).reshape(3, 1, 1)


def _paint_thing(canvas: Plane, thing: Thing, places: Plane, softness: float) -> None:
    size = len(places)
    margin = thing.radius + (thing.rim[1] * thing.radius if thing.rim else 0) + softness / size
    left, right = (min(size, max(0, int((thing.x + side) * size + 1))) for side in (-margin - 1 / size, margin))
    top, bottom = (min(size, max(0, int((thing.y + side) * size + 1))) for side in (-margin - 1 / size, margin))
    if left >= right or top >= bottom:
        return
    x, y = places[left:right], places[top:bottom]
    distance = measure_distance(thing, x, y)
    part = canvas[:, top:bottom, left:right]
    pixels = thing.radius * size / softness  # from distances in radii to how much of a pixel is covered
    closed = thing.symbol < len(SHAPES) or thing.symbol == BAR
    if not closed:
        distance = distance - thing.width
    elif thing.style == "outline":
        distance = np.abs(distance + thing.width) - thing.width
    surface = _fill_surface(thing.surface, x, y)
    if thing.rim:
        colour, width = thing.rim
        if not closed:  # around strokes, which are too thin to have an inside
            _blend(part, _as_column(colour), distance - width, pixels)
        elif thing.style == "fill":
            _blend(part, _as_column(colour), distance, pixels)
            distance = distance + width
    _blend(part, surface, distance, pixels)


def measure_distance(thing: Thing, x: Plane, y: Plane) -> Plane:
    """From pixels at `x` and `y` to the symbol's outline or strokes, in radii: its table, turned, squeezed and read."""
    c, s = cosine_sine(thing.turn)
    wide, high = thing.narrow
    per_cell = CELLS / (2 * REACH) / thing.radius
    x, y = x - np.float32(thing.x), y - np.float32(thing.y)
    column = (x * (c * per_cell / wide))[None, :] + (y * (s * per_cell / wide))[:, None] + (CELLS / 2 - 0.5)
    row = (x * (-s * per_cell / high))[None, :] + (y * (c * per_cell / high))[:, None] + (CELLS / 2 - 0.5)
    column, row = column.clip(0, CELLS - 1.001), row.clip(0, CELLS - 1.001)
    cell_x, cell_y = column.astype(np.int32), row.astype(np.int32)
    share_x, share_y = column - cell_x.astype(np.float32), row - cell_y.astype(np.float32)
    table = distance_tables()[thing.symbol].reshape(-1)
    corner = cell_y * CELLS + cell_x
    above, below = table[corner], table[corner + CELLS]
    above = above + (table[corner + 1] - above) * share_x
    below = below + (table[corner + CELLS + 1] - below) * share_x
    return above + (below - above) * share_y


def _blend(part: Plane, over: Plane, distance: Plane, pixels: float) -> None:
    cover = (0.5 - distance * pixels).clip(0, 1)
    part += (over - part) * cover
