"""Data sets that are arrays of pixels: converted once, then memory-mapped by every process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.core.untrusted_json import read_json
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.source import Dataset
from vitreous.data.sources.arrays import Arrays


@dataclass(frozen=True)
class Pixels:
    """What a reader found."""

    classes: tuple[str, ...]
    splits: Mapping[str, tuple[NDArray[np.uint8], NDArray[Any]]]  # images (N, H, W[, C]) and their labels


def pixel_dataset(place: DatasetDir, files: Sequence[Path], read: Callable[[], Pixels], notes: tuple[str, ...] = ()) -> Dataset:
    """The data set that `read` reads from `files`, which happens once."""
    folder = prepare_once(place.name, files, lambda made: _save_pixels(place, made, read()))
    try:
        facts = read_json(folder / "facts.json")
        classes = tuple(facts["classes"])
        splits = {split: Mapped(place.where, split, classes, folder) for split in facts["splits"]}
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise VitreousError(f"{folder}: damaged ({error}); delete this folder, and it is made again") from error
    return Dataset(place.where, classes, splits, notes)


def _save_pixels(place: DatasetDir, folder: Path, pixels: Pixels) -> None:
    for split, (images, labels) in pixels.splits.items():
        Arrays(f"{place.where}, {split}", split, pixels.classes, images, labels)  # checks that they belong together
        np.save(folder / f"{split}-images.npy", np.ascontiguousarray(images))
        np.save(folder / f"{split}-labels.npy", np.asarray(labels, np.int64))
    facts = {"classes": pixels.classes, "splits": list(pixels.splits)}
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


class Mapped(Arrays):
    """Arrays in files, which are pickled as their path and not copied."""

    def __init__(self, where: str, split: str, classes: tuple[str, ...], folder: Path) -> None:
        images = np.load(folder / f"{split}-images.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray)
        labels = np.load(folder / f"{split}-labels.npy", allow_pickle=False)
        super().__init__(where, split, classes, images, labels)
        self.folder = folder

    def __reduce__(self) -> Any:
        return Mapped, (self.where, self.split, self.classes, self.folder)
