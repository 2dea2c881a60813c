"""MNIST and Fashion-MNIST: idx files, plain or gzipped. A header of big-endian sizes, then the bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.archive import open_original
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.pixel_arrays import Pixels, pixel_dataset, read_array
from vitreous.data.source import Dataset

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

_STEMS = {"train": "train", "test": "t10k"}


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
    with open_original(path) as stream:
        header = stream.read(4)
        if header != bytes((0, 0, 0x08, dimensions)):  # 0x08: bytes
            raise VitreousError(
                f"{path}: not an idx file of bytes with {dimensions} dimension(s); it begins with {header.hex() or 'nothing'}"
            )
        shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
        return read_array(path, stream, shape, np.dtype(np.uint8))
