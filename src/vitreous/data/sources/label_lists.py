"""The labels of many items, none or several each, in two arrays: a fraction of what tuples take, and quickly sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class LabelLists:
    ids: NDArray[np.int32]  # all labels, one after another
    ends: NDArray[np.int64]  # where each item's labels end

    @classmethod
    def of(cls, labels: Iterable[tuple[int, ...]]) -> LabelLists:
        several = list(labels)
        ids = np.array([label for own in several for label in own], np.int32)
        return cls(ids, np.cumsum([len(own) for own in several], dtype=np.int64))

    def __getitem__(self, index: int) -> tuple[int, ...]:
        start = int(self.ends[index - 1]) if index else 0
        return tuple(self.ids[start : self.ends[index]].tolist())

    def part(self, start: int, stop: int) -> LabelLists:
        """Those of the items `start` to `stop`."""
        first = int(self.ends[start - 1]) if start else 0
        ends = self.ends[start:stop] - first
        return LabelLists(self.ids[first : first + (ends[-1] if len(ends) else 0)], ends)

    def targets(self) -> NDArray[np.int64]:
        """The first label of each item, -1 where it has none."""
        counts = np.diff(self.ends, prepend=0)
        first = np.full(len(self.ends), -1, np.int64)
        first[counts > 0] = self.ids[(self.ends - counts)[counts > 0]]
        return first
