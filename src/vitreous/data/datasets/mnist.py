"""MNIST and Fashion-MNIST: idx files, plain or gzipped. A header of big-endian sizes, then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.pixel_arrays import Pixels, pixel_dataset
from vitreous.data.source import Dataset

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

_STEMS = {"train": "train", "test": "t10k"}
_MOST = 1 << 30  # twenty times MNIST: a header that claims more is not believed


def open_mnist(place: DatasetDir, classes: tuple[str, ...], nested: str) -> Dataset:
    """`nested` is the folder in which torchvision puts the files."""
    files = {
        split: (_find_idx(place, f"{stem}-images", 3, nested), _find_idx(place, f"{stem}-labels", 1, nested))
        for split, stem in _STEMS.items()
    }

    def read() -> Pixels:
        return Pixels(classes, {split: (read_idx(images, 3), read_idx(labels, 1)) for split, (images, labels) in files.items()})

    return pixel_dataset(place, [path for pair in files.values() for path in pair], read)


def _find_idx(place: DatasetDir, stem: str, dimensions: int, nested: str) -> Path:
    names = [
        f"{stem}{sign}idx{dimensions}-ubyte{ending}" for ending in (".gz", "") for sign in "-."
    ]  # some unpackers put a dot
    return place.need(*names, *(f"{folder}/{name}" for folder in ("raw", nested) for name in names))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes with that many dimensions."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not zipped:
                return _parse_idx(path, raw, dimensions)
            with gzip.GzipFile(fileobj=raw) as stream:
                return _parse_idx(path, cast(IO[bytes], stream), dimensions)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise VitreousError(f"{path}: broken or truncated ({error}); fetch it again") from error


def _parse_idx(path: Path, stream: IO[bytes], dimensions: int) -> NDArray[np.uint8]:
    header = stream.read(4)
    if header != bytes((0, 0, 0x08, dimensions)):  # 0x08: bytes
        raise VitreousError(
            f"{path}: not an idx file of bytes with {dimensions} dimension(s); it begins with {header.hex() or 'nothing'}"
        )
    shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
    length = math.prod(shape)
    if length > _MOST:
        raise VitreousError(f"{path}: claims {length:,} bytes, which is not believed; damaged or another file")
    data = stream.read(length + 1)
    if len(data) != length:
        more = "more" if len(data) > length else f"{len(data):,}"
        raise VitreousError(f"{path}: says that it holds {length:,} bytes and has {more}; truncated or damaged, fetch it again")
    return np.frombuffer(data, np.uint8).reshape(shape)
