"""Data sets that many runs of a study read: opened once a process, slow ones prepared once a machine."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.core.progress import progress_bar
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.open import open_data
from vitreous.data.source import Content, Dataset, Source, View
from vitreous.data.synthetic.generated import Generated
from vitreous.data.transforms.decode import decode
from vitreous.studies.study import hash_json

EVALUATED = 1_000  # rendered images
LARGEST = 64  # pixels of a photograph's side


@functools.cache
def open_once(data: str) -> Dataset:
    """Rendering or decoding an image takes longer than a training step on it, so such sets become arrays in the cache.

    Photographs are reduced to a square of 64 pixels, the largest that a study of small models looks at.
    """
    dataset = open_data(data)
    slow = {name: _some(split) for name, split in dataset.splits.items() if isinstance(split, Source) and _is_slow(split)}
    if not slow:
        return dataset
    what = hash_json({name: split.fingerprint() for name, split in slow.items()})
    folder = prepare_once(f"study-{what}", (), lambda made: _draw(slow, made))
    drawn = {name: _Drawn(split, folder / f"{name}.npy") for name, split in slow.items()}
    return Dataset(dataset.where, dataset.classes, {**dataset.splits, **drawn}, dataset.notes)


@functools.cache
def count_training_images(data: str) -> int:
    return open_data(data).splits["train"].count() or 0


def _is_slow(split: Source) -> bool:
    return split.encoded or isinstance(split, Generated)


def _some(split: Source) -> Source:
    """Of a rendered split to validate or test on, the first thousand: there is no end of them."""
    return split.subset(range(EVALUATED), split.split) if isinstance(split, Generated) and split.split != "train" else split


def _draw(splits: dict[str, Source], folder: Path) -> None:
    for name, split in splits.items():
        with progress_bar(f"preparing {split.where} {name}", len(split)) as advance:
            first = _small(split, 0)
            images = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", first.dtype, (len(split), *first.shape))
            for index in range(len(split)):
                images[index] = _small(split, index)
                advance(1)


def _small(split: Source, index: int) -> NDArray[np.uint8]:
    content = split.read(index)
    if not isinstance(content, bytes):
        return np.asarray(content)
    image = decode(content, place=split.place(index)).convert("RGB")
    return np.asarray(image.resize((LARGEST, LARGEST), Image.Resampling.BILINEAR))


class _Drawn(View):
    """A split whose pixels are mapped from a file, and whose labels are in memory: a rendered image's is computed."""

    def __init__(self, split: Source, path: Path) -> None:
        super().__init__(split)
        self.encoded = False
        self._images = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        self._labels = [split.labels(index) for index in range(len(split))]

    def labels(self, index: int) -> tuple[int, ...]:
        return self._labels[index]

    def read(self, index: int) -> Content:
        return np.asarray(self._images[index])

    def fingerprint(self) -> str:
        return self.parent.fingerprint()
