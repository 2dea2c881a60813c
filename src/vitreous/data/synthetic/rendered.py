"""Rendered images with labels: any number of them, each a function of (seed, index) that is painted when it is read.

A task is a question to a scene (see `scenes`). Tasks of one scene share their images: `position` and
`orientation` ask two questions of the same ones, as do `count` and `objects`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.data.synthetic.generated import Generated
from vitreous.data.synthetic.paint import paint
from vitreous.data.synthetic.scenes import ANGLES, GRID, MOST, SCENES, compose_scene, draw_facts
from vitreous.data.synthetic.symbols import GLYPHS, SHAPES, SYMBOLS

Matrix = NDArray[np.int64]


@dataclass(frozen=True)
class RenderedTask:
    scene: str
    classes: tuple[str, ...]
    answer: Callable[[Matrix], Matrix]  # facts -> labels, one row for each image, padded with -1 at the end
    images: tuple[int, int, int]  # train, validation, test
    question: str


def _list_symbols(found: Matrix) -> Matrix:
    """Each symbol in the image once, in order."""
    count, symbols = found[:, :1], found[:, 1:]
    none = len(SYMBOLS)
    symbols = np.sort(np.where(np.arange(MOST) < count, symbols, none), axis=1)
    symbols[:, 1:][symbols[:, 1:] == symbols[:, :-1]] = none
    symbols = np.sort(symbols, axis=1)
    return np.where(symbols == none, -1, symbols)


_NAMES = tuple(symbol.name for symbol in SYMBOLS)
_SMALL = (1_000, 1_000, 2_000)  # as VTAB: a thousand examples to learn from
_LARGE = (50_000, 5_000, 5_000)
TASKS = {
    "shapes": RenderedTask("single", _NAMES, lambda f: f[:, :1], _LARGE, "which shape or glyph is the large one"),
    "signs": RenderedTask(
        "sign",
        tuple(f"{shape.name}+{glyph.name}" for shape in SHAPES for glyph in GLYPHS),
        lambda f: f[:, :1] * len(GLYPHS) + f[:, 1:],
        (100_000, 5_000, 5_000),
        "which glyph on which shape",
    ),
    "objects": RenderedTask("several", _NAMES, _list_symbols, _LARGE, "which shapes and glyphs are there; several labels"),
    "count": RenderedTask("several", tuple(str(n + 1) for n in range(MOST)), lambda f: f[:, :1] - 1, _SMALL, "how many things"),
    "position": RenderedTask(
        "pose",
        tuple(f"row-{row + 1}-column-{column + 1}" for row in range(GRID) for column in range(GRID)),
        lambda f: f[:, 1:2],
        _SMALL,
        f"where the thing is, on a grid of {GRID} x {GRID}",
    ),
    "orientation": RenderedTask(
        "pose",
        tuple(f"{360 * angle / ANGLES:g}-degrees" for angle in range(ANGLES)),
        lambda f: f[:, 2:],
        _SMALL,
        f"which way the thing points, clockwise from up, in {ANGLES} steps",
    ),
}


class Rendered(Generated):
    """One split of one task. Holds no image and no label: both are computed when asked for."""

    edition = 1

    def __init__(self, where: str, split: str, task: str, *, count: int, size: int = 64, seed: int = 0) -> None:
        super().__init__(where, split, count=count, size=size, seed=seed)
        self.task, self.classes, self.scene = task, TASKS[task].classes, SCENES.index(TASKS[task].scene)

    def read(self, index: int) -> NDArray[np.uint8]:
        return paint(compose_scene(TASKS[self.task].scene, int(self._keys(self._check_index(index), 1)[0])), self.size)

    def _labels(self, first: int, count: int) -> Matrix:
        task = TASKS[self.task]
        return task.answer(draw_facts(task.scene, self._keys(first, count)))
