"""The images of another source under other labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.source import Source, View
from vitreous.data.sources.label_lists import LabelLists


class Relabelled(View):
    """The items of a source, in its order, with these labels."""

    def __init__(self, parent: Source, labels: Sequence[tuple[int, ...]]) -> None:
        if len(labels) != len(parent):
            raise VitreousError(f"{parent.where}: {len(labels):,} labels for {len(parent):,} images; not those of this set")
        super().__init__(parent)
        self._labels = LabelLists.of(labels)
        wrong = self._labels.ids[(self._labels.ids < 0) | (self._labels.ids >= len(self.classes))]
        if len(wrong):
            raise VitreousError(f"{parent.where}: label {wrong[0]} of {len(self.classes):,} classes; not those of this set")

    def labels(self, index: int) -> tuple[int, ...]:
        return self._labels[index]

    def targets(self) -> NDArray[np.int64]:
        return self._labels.targets()

    def counts(self) -> NDArray[np.int64]:
        return np.bincount(self._labels.ids, minlength=len(self.classes))
