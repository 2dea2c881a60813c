"""smallNORB: 24,300 pairs of 96 x 96 for training and as many for testing, in the matrix files of its authors.

A matrix file is, little-endian: a magic number for the type, the number of dimensions, at least three sizes, the values.
The first image of each pair is used. `info` has instance, elevation (0 to 8), azimuth (0, 2 ... 34) and lighting.
VTAB takes 800 of the training images, 200 of the first half of the test images, and tests on the second half.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.archive import open_original
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.pixel_arrays import MOST, read_array, read_rows
from vitreous.data.datasets.tfds_order import sort_as_tfds
from vitreous.data.datasets.vtab_parts import Parts, choose_examples, open_rows, save_rows
from vitreous.data.datasets.vtab_tasks import VtabTask

STEMS = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}

_TYPES: dict[int, np.dtype[Any]] = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}
_ELEVATION, _AZIMUTH = 1, 2


def open_smallnorb(place: DatasetDir, task: VtabTask) -> Parts:
    files = {(split, kind): _find_matrix(place, split, kind) for split in STEMS for kind in ("dat", "info")}
    folder = prepare_once("vtab-smallnorb", list(files.values()), lambda made: _extract_rows(files, made, place.where))
    if task.name == "smallnorb-azimuth":
        return open_rows(place, task, folder, lambda info: info[:, _AZIMUTH] // 2)
    return open_rows(place, task, folder, lambda info: info[:, _ELEVATION])


def _find_matrix(place: DatasetDir, split: str, kind: str) -> Path:
    name = f"{STEMS[split]}-{kind}.mat"
    return place.need(f"{name}.gz", name, f"smallnorb/{name}.gz", f"smallnorb/{name}")


def _extract_rows(files: dict[tuple[str, str], Path], folder: Path, where: str) -> None:
    info = {split: _read_info(files[split, "info"]) for split in STEMS}
    train, test = (sort_as_tfds(split, range(len(info[split]))) for split in STEMS)
    half = len(test) // 2
    chosen = choose_examples(train, test[:half], test[half:], where)
    rows = {"train": chosen.train, "test": np.concatenate((chosen.validation, chosen.test))}
    images = [_read_first_of_pairs(files[split, "dat"], len(info[split]), own) for split, own in rows.items()]
    ids = [f"{split}/{number:05d}" for split, own in rows.items() for number in own.tolist()]
    facts = np.concatenate([info[split][own] for split, own in rows.items()])
    save_rows(folder, chosen, np.concatenate(images), ids, facts)


def _read_info(path: Path) -> NDArray[np.int64]:
    """The table of four columns that an info file is."""
    with _open_matrix(path) as (stream, shape, kind):
        if kind != np.dtype("<i4") or len(shape) != 2 or shape[1] != 4:
            raise VitreousError(f"{path}: a matrix of {kind} and {shape}, where an info file has four columns; a wrong file")
        return read_array(path, stream, shape, kind).astype(np.int64)


def _read_first_of_pairs(path: Path, count: int, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    with _open_matrix(path) as (stream, shape, kind):
        if kind != np.uint8 or len(shape) != 4 or shape[:2] != (count, 2) or min(shape[2:]) < 1:
            raise VitreousError(
                f"{path}: a matrix of {kind} and {shape}, where {count:,} pairs of images should be; a wrong file"
            )
        return read_rows(path, stream, (2 * count, *shape[2:]), 2 * rows)


@contextmanager
def _open_matrix(path: Path) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]]:
    """The values as a stream, with their shape and type."""
    with open_original(path) as stream:
        start = stream.read(8)
        magic, dimensions = struct.unpack("<ii", start.ljust(8, b"\0"))
        if magic not in _TYPES or not 1 <= dimensions <= 8:
            raise VitreousError(f"{path}: not a matrix file of smallNORB; it begins with {start[:4].hex() or 'nothing'}")
        sizes = struct.unpack(f"<{max(3, dimensions)}i", stream.read(4 * max(3, dimensions)))
        shape, kind = sizes[:dimensions], _TYPES[magic]
        if min(shape) < 0 or math.prod(shape) * kind.itemsize > MOST:
            raise VitreousError(f"{path}: claims a matrix of {shape}, which is not believed; damaged or another file")
        yield stream, shape, kind
