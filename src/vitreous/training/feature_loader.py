"""Batches of features that were computed once, in place of the images of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.loading.loader import Batch, Loader
from vitreous.data.source import Source
from vitreous.inference.features import Features


class FeatureLoader(Loader):
    """A loader's batches, with the features of the images in place of the images, in the same order."""

    def __init__(self, loader: Loader, found: Features) -> None:
        vars(self).update(vars(loader))
        assert isinstance(self.data, Source)
        self.found = found
        self._rows = np.full(len(self.data), -1, np.int64)  # of an item that could not be read: none
        self._rows[found.numbers] = np.arange(len(found))

    def training(self, start: int = 0) -> Iterator[Batch]:
        for step in itertools.count(start):
            yield self._batch(self._rows[self._items(step)[0]], step)

    def once(self) -> Iterator[Batch]:
        for number, at in enumerate(range(0, len(self._rows), self.local_batch)):
            yield self._batch(self._rows[at : at + self.local_batch], number)

    def _batch(self, rows: NDArray[np.int64], step: int) -> Batch:
        chosen = self.found.some(rows[rows >= 0])
        return Batch(torch.from_numpy(chosen.values), chosen.labels, chosen.ids, step)
