"""Data sets that many runs of a study read: opened once a process, rendered images drawn once a machine."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from vitreous.core.progress import progress_bar
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.open import open_data
from vitreous.data.source import Content, Dataset, Source
from vitreous.data.synthetic.generated import Generated
from vitreous.studies.study import hash_json


@functools.cache
def open_once(data: str) -> Dataset:
    """Drawing an image takes longer than a training step on it, so rendered sets become arrays in the cache."""
    dataset = open_data(data)
    generated = {name: split for name, split in dataset.splits.items() if isinstance(split, Generated)}
    if not generated:
        return dataset
    what = hash_json({name: split.fingerprint() for name, split in generated.items()})
    folder = prepare_once(f"rendered-{what}", (), lambda made: _draw(generated, made))
    splits = {name: _Drawn(split, folder / f"{name}.npy") for name, split in generated.items()}
    return Dataset(dataset.where, dataset.classes, splits, dataset.notes)


def _draw(splits: dict[str, Generated], folder: Path) -> None:
    for name, split in splits.items():
        with progress_bar(f"rendering {split.where} {name}", len(split)) as advance:
            first = np.asarray(split.read(0))
            images = np.empty((len(split), *first.shape), np.uint8)
            for index in range(len(split)):
                images[index] = split.read(index)
                advance(1)
        np.save(folder / f"{name}.npy", images)


class _Drawn(Source):
    """A rendered split whose pixels are mapped from a file."""

    encoded = False

    def __init__(self, split: Generated, path: Path) -> None:
        self.where, self.split, self.classes = split.where, split.split, split.classes
        self._source, self._images = split, np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)

    def __len__(self) -> int:
        return len(self._source)

    def id(self, index: int) -> str:
        return self._source.id(index)

    def labels(self, index: int) -> tuple[int, ...]:
        return self._source.labels(index)

    def read(self, index: int) -> Content:
        return np.asarray(self._images[index])

    def fingerprint(self) -> str:
        return self._source.fingerprint()
