"""What each rendered image shows: a scene, composed from a key, that `paint` turns into pixels.

Four scenes. The same image answers all the questions of its scene:

    single   one large symbol among smaller ones and bars       what is it?
    pose     one shape that points somewhere, and bars          where is it? where does it point?
    several  one to eight symbols that do not overlap           how many? which?
    sign     a glyph on a shape, as on a road sign              which of both?

The answers are drawn from slots of their own (`facts`), so that they are known without composing or painting, and say
nothing about colour, texture, light or noise, which come from other slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitreous.data.synthetic.random_draws import Draws, draw_uniform
from vitreous.data.synthetic.symbols import BAR, GLYPHS, SHAPES, SYMBOLS
from vitreous.data.synthetic.textures import FAMILIES, Texture

Colour = tuple[float, float, float]
Style = Literal["fill", "outline"]

SCENES = ("single", "pose", "several", "sign")
POINTERS = {i: symbol.points for i, symbol in enumerate(SYMBOLS) if symbol.points is not None}
GRID = 4  # positions along each side
ANGLES = 16
MOST = 8  # symbols in a scene of several
FACTS = 16  # slots that are kept for facts
_EDGE = 0.2  # the grid of positions begins here, so that a symbol in a corner is not cut in half
_LOOSE = 0.35  # how far from the middle of its cell or angle a symbol may be, in cells: borders stay free of doubt


@dataclass(frozen=True)
class Surface:
    first: Colour
    second: Colour
    look: Texture


@dataclass(frozen=True)
class Thing:
    symbol: int
    x: float  # its centre of mass, as a share of the image; y goes down
    y: float
    radius: float
    turn: float  # clockwise, as a fraction of a turn
    surface: Surface
    style: Style = "fill"
    width: float = 0.13  # half the width of strokes and outlines, as a share of the radius
    narrow: tuple[float, float] = (1.0, 1.0)  # squeezed along its own axes, never stretched: it stays within the radius
    rim: tuple[Colour, float] | None = None  # an edge in another colour, and its width: inside a shape, around strokes


@dataclass(frozen=True)
class Scene:
    ground: Surface
    things: tuple[Thing, ...]  # the nearer ones later
    softness: float = 1.0  # of edges, in pixels at 64 x 64
    light: tuple[float, float] = (0.0, 0.0)  # where it comes from, and how uneven it is
    noise: float = 0.0
    key: int = 0


def draw_facts(scene: str, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A row for each image: single (symbol), pose (symbol, cell, angle), several (count, symbols), sign (shape, glyph)."""
    bounds = {
        "single": (len(SYMBOLS),),
        "pose": (len(POINTERS), GRID * GRID, ANGLES),
        "several": (MOST, *[len(SYMBOLS)] * MOST),
        "sign": (len(SHAPES), len(GLYPHS)),
    }[scene]
    slots = np.arange(len(bounds), dtype=np.uint64)
    found = (draw_uniform(keys[:, None], slots) * np.array(bounds, np.float64)).astype(np.int64)
    if scene == "several":
        found[:, 0] += 1
    if scene == "pose":
        found[:, 0] = np.array(list(POINTERS))[found[:, 0]]
    return found


def compose_scene(scene: str, key: int) -> Scene:
    draws = Draws(key, FACTS, 400)
    known = draw_facts(scene, np.array([key], np.uint64))[0].tolist()
    luma = draws.between(0.2, 0.8)
    ground = _draw_surface(draws, luma, draws.between(0.02, 0.28))
    composed = {"single": _compose_single, "pose": _compose_pose, "several": _compose_several, "sign": _compose_sign}[scene](
        draws, luma, known
    )
    light = (draws.unit(), draws.between(0.0, 0.5) if draws.chance(0.6) else 0.0)
    noise = draws.between(0.0, 0.07)
    return Scene(ground, composed, draws.between(1.0, 1.8), light, noise, draws.key())


# The four scenes ------------------------------------------------------------------------------------------------------------


def _compose_single(draws: Draws, luma: float, known: list[int]) -> tuple[Thing, ...]:
    radius = draws.between(0.19, 0.36)
    x, y = (draws.between(0.8 * radius, 1 - 0.8 * radius) for _ in "xy")
    things = _draw_bars(draws, luma, draws.below(3))
    things += [  # at most half as large as the one that counts
        _draw_symbol(draws, luma, draws.below(len(SYMBOLS)), draws.unit(), draws.unit(), draws.between(0.05, 0.09))
        for _ in range(draws.below(4))
    ]
    things.append(_draw_symbol(draws, luma, known[0], x, y, radius))
    if draws.chance(0.35):
        things.append(_draw_crossing_bar(draws, x, y, radius))
    return tuple(things)


def _compose_pose(draws: Draws, luma: float, known: list[int]) -> tuple[Thing, ...]:
    symbol, cell, angle = known
    row, column = divmod(cell, GRID)
    x, y = (_EDGE + (1 - 2 * _EDGE) * (k + 0.5 + draws.between(-_LOOSE, _LOOSE)) / GRID for k in (column, row))
    turn = (angle + draws.between(-_LOOSE, _LOOSE)) / ANGLES - POINTERS[symbol]
    # Filled, plain and large: a thousand examples are to be enough for a model that has learnt to see elsewhere.
    shape = Thing(
        symbol,
        x,
        y,
        draws.between(0.18, 0.27),
        turn,
        _draw_plain_surface(draws, _draw_contrasting_luma(draws, luma)),
        narrow=_draw_squeeze(draws),
    )
    return (*_draw_bars(draws, luma, draws.below(3)), shape)


def _compose_several(draws: Draws, luma: float, known: list[int]) -> tuple[Thing, ...]:
    """Each symbol has one of nine cells to itself: what overlaps cannot be counted."""
    count, *symbols = known
    cells = list(range(9))
    things = _draw_bars(draws, luma, draws.below(4))
    for symbol in symbols[:count]:
        row, column = divmod(cells.pop(draws.below(len(cells))), 3)
        radius = draws.between(0.1, 0.15)
        room = 1 / 6 - radius
        x, y = ((k + 0.5) / 3 + draws.between(-room, room) for k in (column, row))
        things.append(_draw_symbol(draws, luma, symbol, x, y, radius))
    return tuple(things)


def _compose_sign(draws: Draws, luma: float, known: list[int]) -> tuple[Thing, ...]:
    radius = draws.between(0.26, 0.42)
    x, y = (draws.between(0.85 * radius, 1 - 0.85 * radius) for _ in "xy")
    things = _draw_bars(draws, luma, draws.below(3))
    own = _draw_contrasting_luma(draws, luma)
    plate, turn = _draw_plain_surface(draws, own), draws.unit()
    things.append(Thing(known[0], x, y, radius, turn, plate, narrow=_draw_squeeze(draws)))
    ink, width, bent = (
        _draw_plain_surface(draws, _draw_contrasting_luma(draws, own)),
        draws.between(0.1, 0.14),
        turn + draws.between(-0.1, 0.1),
    )
    around = (plate.first, 0.15)  # a shape may be narrower than the glyph on it
    size = radius * draws.between(0.5, 0.6)
    things.append(Thing(len(SHAPES) + known[1], x, y, size, bent, ink, width=width, rim=around))
    if draws.chance(0.2):
        things.append(_draw_crossing_bar(draws, x, y, radius))
    return tuple(things)


# Their parts ----------------------------------------------------------------------------------------------------------------


def _draw_symbol(draws: Draws, luma: float, symbol: int, x: float, y: float, radius: float) -> Thing:
    """A symbol in a colour, texture and style of its own, lighter or darker than what is behind it."""
    own = _draw_contrasting_luma(draws, luma)
    surface = _draw_surface(draws, own, draws.between(0.0, 0.14)) if radius > 0.12 else _draw_plain_surface(draws, own)
    rim = (_draw_colour(draws, _draw_contrasting_luma(draws, own)), draws.between(0.08, 0.14))
    return Thing(
        symbol, x, y, radius,
        draws.unit(),
        surface,
        style="outline" if draws.chance(0.35) else "fill",
        width=draws.between(0.1, 0.15),
        narrow=_draw_squeeze(draws),
        rim=rim if draws.chance(0.25) else None,
    )  # fmt: skip


def _draw_bars(draws: Draws, luma: float, count: int) -> list[Thing]:
    """Clutter that is not a symbol: lines behind everything else."""
    bars = []
    for _ in range(count):
        near = min(0.95, max(0.05, luma + draws.between(-0.3, 0.3)))
        x, y, radius, turn = draws.unit(), draws.unit(), draws.between(0.15, 0.6), draws.unit()
        bars.append(Thing(BAR, x, y, radius, turn, _draw_plain_surface(draws, near)))
    return bars


def _draw_crossing_bar(draws: Draws, x: float, y: float, radius: float) -> Thing:
    """A bar in front of a symbol: it hides a part, never most of it."""
    x, y = (place + radius * draws.between(-0.5, 0.5) for place in (x, y))
    return Thing(BAR, x, y, radius * draws.between(1.2, 2.2), draws.unit(), _draw_plain_surface(draws, draws.between(0.1, 0.9)))


def _draw_squeeze(draws: Draws) -> tuple[float, float]:
    share = draws.between(0.78, 1.0)
    return (share, 1.0) if draws.chance(0.5) else (1.0, share)


def _draw_plain_surface(draws: Draws, luma: float) -> Surface:
    colour = _draw_colour(draws, luma)
    return Surface(colour, colour, Texture("flat"))


def _draw_surface(draws: Draws, luma: float, contrast: float) -> Surface:
    first, second = _draw_colour(draws, luma - contrast / 2), _draw_colour(draws, luma + contrast / 2)
    if draws.chance(0.5):
        first, second = second, first
    family = tuple(FAMILIES)[draws.below(len(FAMILIES))]
    warp = draws.between(0.3, 1.5) if draws.chance(0.5) else 0.0
    hardness = draws.between(2.0, 8.0) if draws.chance(0.5) else 1.0
    coarsest = 5.5 if family in ("dots", "checks") else 2.5  # larger ones could be taken for discs and squares
    look = Texture(family, draws.unit(), draws.between(coarsest, 12.0), draws.unit(), warp, hardness, draws.key())
    return Surface(first, second, look)


def _draw_contrasting_luma(draws: Draws, luma: float) -> float:
    """A brightness at least 0.28 from `luma`, lighter or darker wherever both are possible."""
    lighter, darker = 0.95 - luma, luma - 0.05
    up = draws.chance(0.5) if min(lighter, darker) >= 0.28 else lighter > darker
    step = draws.between(0.28, lighter if up else darker)
    return luma + step if up else luma - step


def _draw_colour(draws: Draws, luma: float) -> Colour:
    """Any hue at this brightness (ITU-R BT.601), as far as there is such a colour."""
    blue, red = draws.between(-0.2, 0.2), draws.between(-0.2, 0.2)
    mixed = (luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue)
    r, g, b = (min(1.0, max(0.0, part)) for part in mixed)
    return r, g, b
