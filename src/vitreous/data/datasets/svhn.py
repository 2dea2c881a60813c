"""Street View House Numbers, format 2: cropped digits in train_32x32.mat and test_32x32.mat.

The file with 531,131 easier digits, extra_32x32.mat, is left alone: neither the paper nor VTAB trains on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.matlab import check_integers, read_mat
from vitreous.data.datasets.mnist import DIGITS
from vitreous.data.datasets.pixel_arrays import Pixels, pixel_dataset
from vitreous.data.source import Dataset


def open_svhn(place: DatasetDir) -> Dataset:
    files = {split: place.need(f"{split}_32x32.mat") for split in ("train", "test")}
    return pixel_dataset(
        place, list(files.values()), lambda: Pixels(DIGITS, {split: _read_split(path) for split, path in files.items()})
    )


def _read_split(path: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    images, labels = read_mat(path, "X", "y")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        shape = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "no array"
        raise VitreousError(f"{path}: X is {shape}, not uint8 (32, 32, 3, N); another file than the one meant")
    # 1 to 9 stand for themselves, 10 for the digit 0.
    return images.transpose(3, 0, 1, 2), check_integers(path, "y", labels, 1, 10) % 10
