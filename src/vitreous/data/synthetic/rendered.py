"""Rendered images with labels: any number of them, each a function of (seed, index) that is painted when it is read.

A task is a question to a scene (see `scenes`). Tasks of one scene share their images: `position` and
`orientation` ask two questions of the same ones, as do `count` and `objects`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.synthetic.generated import Generated
from vitreous.data.synthetic.paint import paint
from vitreous.data.synthetic.scenes import ANGLES, GRID, MOST, SCENES, compose_scene, draw_facts
from vitreous.data.synthetic.symbols import GLYPHS, SHAPES, SYMBOLS

Matrix = NDArray[np.int64]

LARGEST = 2**63 - 1  # what Python's len() can say
_LISTED = 10**9  # items whose labels fit into the memory of a large machine
_BLOCK = 1 << 16


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

    def labels(self, index: int) -> tuple[int, ...]:
        return tuple(label for label in self._labels(self._check_index(index), 1)[0].tolist() if label >= 0)

    def read(self, index: int) -> NDArray[np.uint8]:
        return paint(compose_scene(TASKS[self.task].scene, int(self._keys(self._check_index(index), 1)[0])), self.size)

    def targets(self) -> Matrix:
        self._check_listable()
        return np.concatenate([rows[:, 0] for rows in self._blocks()])

    def counts(self) -> Matrix:
        self._check_listable()
        counted = np.zeros(len(self.classes), np.int64)
        for rows in self._blocks():
            counted += np.bincount(rows[rows >= 0], minlength=len(self.classes))
        return counted

    def _check_listable(self) -> None:
        if self._count > _LISTED:
            raise VitreousError(f"{self.where}: too many items to list their labels; choose count={_LISTED} or less")

    def _labels(self, first: int, count: int) -> Matrix:
        task = TASKS[self.task]
        return task.answer(draw_facts(task.scene, self._keys(first, count)))

    def _blocks(self) -> list[Matrix]:
        return [self._labels(first, min(_BLOCK, self._count - first)) for first in range(0, self._count, _BLOCK)]
