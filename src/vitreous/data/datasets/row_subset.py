"""Selected rows of a large array in a compressed file: streamed once, cached, and memory-mapped by every process.

VTAB uses a tenth of dSprites and half of smallNORB. What a packed file holds cannot be had out of its order, and unpacked
it is gigabytes; so it is streamed through once, and only the chosen rows are kept.
"""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.progress import progress_bar
from vitreous.data.source import Content
from vitreous.data.sources.arrays import Arrays

BROKEN = (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, gzip.BadGzipFile)
"""What the standard library and numpy raise on damaged, cut, encrypted or exotic files."""

_CHUNK = 1 << 24  # bytes held at a time


def broken_file_error(path: Path, error: object) -> VitreousError:
    return VitreousError(f"{path}: broken or truncated ({one_line(error)}); fetch it again")


Keep = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
"""From chosen rows to what is kept of them."""


def read_rows(
    path: Path, stream: IO[bytes], shape: tuple[int, ...], wanted: NDArray[np.int64], keep: Keep
) -> NDArray[np.uint8]:
    """What is kept of these rows of an array of bytes that the stream holds, in the order in which they are wanted."""
    order = np.argsort(wanted, kind="stable")
    ascending = wanted[order]
    size = math.prod(shape[1:])
    at_once, parts = max(1, _CHUNK // size), []
    with progress_bar(f"reading {path.name}", shape[0]) as advance:
        for start in range(0, shape[0], at_once):
            count = min(at_once, shape[0] - start)
            data = stream.read(count * size)
            if len(data) != count * size:
                raise VitreousError(f"{path}: truncated: row {start + len(data) // size:,} of {shape[0]:,}; fetch it again")
            here = ascending[slice(*np.searchsorted(ascending, (start, start + count)))]
            parts.append(keep(np.frombuffer(data, np.uint8).reshape(count, *shape[1:])[here - start]))
            advance(count)
    if stream.read(1):  # to the end, which also makes the unpacker compare its checksum
        raise VitreousError(f"{path}: has more after its {shape[0]:,} rows; another file than the original")
    kept = np.concatenate(parts)
    found = np.empty_like(kept)
    found[order] = kept
    return found


def save_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def load_array(folder: Path, name: str, mapped: bool = False) -> NDArray[Any]:
    try:
        found = np.load(folder / f"{name}.npy", mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise VitreousError(f"{folder}: damaged ({one_line(error)}); delete this folder, and it is made again") from error
    return found.view(np.ndarray)


class RowSubset(Arrays):
    """Rows that `rows` has kept. The number that an item has in the original is its id.

    With `bits`, pixels are black or white and lie eight to a byte. Grey: the preprocessing makes of it what a model wants.
    """

    def __init__(
        self,
        where: str,
        split: str,
        classes: tuple[str, ...],
        labels: NDArray[np.int64],
        folder: Path,
        part: str,
        bits: tuple[int, int] | None = None,  # height and width
    ) -> None:
        images, ids = load_array(folder, f"{part}-images", mapped=True), load_array(folder, f"{part}-ids")
        super().__init__(where, split, classes, images, labels, ids.tolist())
        self._folder, self._part, self._bits = folder, part, bits

    def __reduce__(self) -> Any:  # to another process goes the path of the pixels, not a copy of them
        fields = (self.where, self.split, self.classes, self._targets, self._folder, self._part, self._bits)
        return RowSubset, fields

    def read(self, index: int) -> Content:
        if self._bits is None:
            return super().read(index)
        height, width = self._bits
        return np.unpackbits(self.images[index], count=height * width).reshape(height, width) * np.uint8(255)
