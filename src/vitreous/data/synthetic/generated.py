"""The part that all rendered data sets share: items that are a function of (seed, index) and are painted when read."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.core.hashing import hash_words
from vitreous.data.source import Source
from vitreous.data.synthetic.random_draws import derive_keys

# Where the images of each split begin, so that none are in common.
FIRST = {"train": 0, "validation": 2**63, "test": 2**63 + 2**62}
LARGEST = 2**63 - 1  # what Python's len() can say
_LISTED = 10**9  # items whose labels fit into the memory of a large machine
_BLOCK = 1 << 16  # of them at once


class Generated(Source):
    """One split. `scene` separates the random numbers of different scenes; `edition` is raised when any image changes."""

    encoded = False
    task: str
    scene: int
    edition: int

    def __init__(self, where: str, split: str, *, count: int, size: int, seed: int = 0) -> None:
        self.where, self.split, self.size, self.seed, self._count = where, split, size, seed, count

    def __len__(self) -> int:
        return self._count

    def id(self, index: int) -> str:
        return f"{self.split}/{self._check_index(index):06d}"

    @abstractmethod
    def _labels(self, first: int, count: int) -> NDArray[np.int64]:
        """The labels of these images, one row for each, padded with -1 at the end."""

    def labels(self, index: int) -> tuple[int, ...]:
        return tuple(label for label in self._labels(self._check_index(index), 1)[0].tolist() if label >= 0)

    def targets(self) -> NDArray[np.int64]:
        return np.concatenate([rows[:, 0] for rows in self._blocks()])

    def counts(self) -> NDArray[np.int64]:
        return np.sum([np.bincount(rows[rows >= 0], minlength=len(self.classes)) for rows in self._blocks()], axis=0)

    def _blocks(self) -> list[NDArray[np.int64]]:
        if self._count > _LISTED:
            raise VitreousError(f"{self.where}: too many items to list their labels; choose count={_LISTED} or less")
        return [self._labels(first, min(_BLOCK, self._count - first)) for first in range(0, self._count, _BLOCK)]

    def fingerprint(self) -> str:
        """What it is made from says all, so that a billion images need not be gone through."""
        return hash_words(self.edition, self.task, self.split, self.size, self.seed, self._count)

    def _check_index(self, index: int) -> int:
        if not 0 <= index < self._count:  # Python's for loop over a sequence ends by this error
            raise IndexError(f"{self.where}: no item {index} in {self.split}, which has {self._count:,}")
        return index

    def _keys(self, first: int, count: int) -> NDArray[np.uint64]:
        return derive_keys(self.seed, self.scene, np.arange(count, dtype=np.uint64) + np.uint64(FIRST[self.split] + first))
