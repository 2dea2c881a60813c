"""The images of another source under other labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.source import Source, View


class Relabelled(View):
    """The items of a source, in its order, with these labels.

    The labels lie in two arrays, which take a fraction of what tuples do and are sent quickly to worker processes.
    """

    def __init__(self, parent: Source, labels: Sequence[tuple[int, ...]]) -> None:
        if len(labels) != len(parent):
            raise VitreousError(f"{parent.where}: {len(labels):,} labels for {len(parent):,} images; not those of this set")
        super().__init__(parent)
        self._ids = np.array([label for several in labels for label in several], np.int64)
        self._ends = np.cumsum([len(several) for several in labels], dtype=np.int64)
        wrong = self._ids[(self._ids < 0) | (self._ids >= len(self.classes))]
        if len(wrong):
            raise VitreousError(f"{parent.where}: label {wrong[0]} of {len(self.classes):,} classes; not those of this set")

    def labels(self, index: int) -> tuple[int, ...]:
        start = int(self._ends[index - 1]) if index else 0
        return tuple(self._ids[start : self._ends[index]].tolist())

    def targets(self) -> NDArray[np.int64]:
        starts = np.concatenate(([0], self._ends[:-1])).astype(np.int64) if len(self._ends) else self._ends
        first = np.full(len(self), -1, np.int64)
        labelled = self._ends > starts
        first[labelled] = self._ids[starts[labelled]]
        return first

    def counts(self) -> NDArray[np.int64]:
        return np.bincount(self._ids, minlength=len(self.classes))
