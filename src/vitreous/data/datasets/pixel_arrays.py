"""Data sets that are arrays of pixels: converted once, then memory-mapped by every process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.progress import progress_bar
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.source import Dataset
from vitreous.data.sources.arrays import Arrays

MOST = 1 << 30  # bytes of an array; each of the originals has half of it at most, and more is not believed
_CHUNK = 1 << 24  # bytes held at a time


@dataclass(frozen=True)
class Pixels:
    """What a reader found."""

    classes: tuple[str, ...]
    splits: Mapping[str, tuple[NDArray[np.uint8], NDArray[Any]]]  # images (N, H, W[, C]) and their labels


def pixel_dataset(place: DatasetDir, files: Sequence[Path], read: Callable[[], Pixels]) -> Dataset:
    """The data set that `read` reads from `files`, which happens once."""
    folder = prepare_once(place.name, files, lambda made: _save_pixels(place, made, read()))
    classes = tuple(load_array(folder, "classes").tolist())
    splits = {
        split: MappedArrays(place.where, split, classes, folder, load_array(folder, f"{split}-labels"))
        for split in load_array(folder, "splits").tolist()
    }
    return Dataset(place.where, classes, splits)


def _save_pixels(place: DatasetDir, folder: Path, pixels: Pixels) -> None:
    for split, (images, labels) in pixels.splits.items():
        Arrays(f"{place.where}, {split}", split, pixels.classes, images, labels)  # checks that they belong together
        save_arrays(folder, {f"{split}-images": np.ascontiguousarray(images), f"{split}-labels": np.asarray(labels, np.int64)})
    save_arrays(folder, {"classes": np.array(pixels.classes), "splits": np.array(list(pixels.splits))})


def save_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def load_array(folder: Path, name: str, mapped: bool = False) -> NDArray[Any]:
    try:
        found = np.load(folder / f"{name}.npy", mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise VitreousError(f"{folder}: damaged ({one_line(error)}); delete this folder, and it is made again") from error
    return found.view(np.ndarray)


class MappedArrays(Arrays):
    """Images in a file of the cache, which are pickled as its path and not copied."""

    def __init__(
        self,
        where: str,
        split: str,
        classes: tuple[str, ...],
        folder: Path,
        labels: NDArray[np.int64],
        ids: Sequence[str] | None = None,
    ) -> None:
        super().__init__(where, split, classes, load_array(folder, f"{split}-images", mapped=True), labels, ids)
        self.folder = folder

    def __reduce__(self) -> Any:
        return MappedArrays, (self.where, self.split, self.classes, self.folder, self._targets, self._ids)


def read_array(path: Path, stream: IO[bytes], shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """The array of that shape which is all that the stream still holds."""
    length = math.prod(shape) * kind.itemsize
    if length > MOST:
        raise VitreousError(f"{path}: claims {length:,} bytes, which is not believed; damaged or another file")
    data = stream.read(length + 1)
    if len(data) != length:
        more = "more" if len(data) > length else f"{len(data):,}"
        raise VitreousError(f"{path}: says that it holds {length:,} bytes and has {more}; truncated or damaged, fetch it again")
    return np.frombuffer(data, kind).reshape(shape)


def read_rows(path: Path, stream: IO[bytes], shape: tuple[int, ...], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """These rows of an array of bytes that the stream holds, in the order given; a packed array can only be read in its own."""
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    size = math.prod(shape[1:])
    at_once, found = max(1, _CHUNK // size), np.empty((len(rows), *shape[1:]), np.uint8)
    with progress_bar(f"reading {path.name}", shape[0]) as advance:
        for start in range(0, shape[0], at_once):
            count = min(at_once, shape[0] - start)
            data = stream.read(count * size)
            if len(data) != count * size:
                raise VitreousError(f"{path}: truncated: row {start + len(data) // size:,} of {shape[0]:,}; fetch it again")
            here = slice(*np.searchsorted(ascending, (start, start + count)))
            found[order[here]] = np.frombuffer(data, np.uint8).reshape(count, *shape[1:])[ascending[here] - start]
            advance(count)
    if stream.read(1):  # to the end, which also makes the unpacker compare its checksum
        raise VitreousError(f"{path}: has more after its {shape[0]:,} rows; another file than the original")
    return found
