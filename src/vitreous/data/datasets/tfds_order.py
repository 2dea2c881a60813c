"""The order in which TensorFlow Datasets lays down the examples of a split, from which VTAB takes the first 800.

That order is not random: examples are sorted by the MD5 of the split's name followed by the example's key, a file name or a
number. The rule is fixed for good by that project, since `train[:800]` would mean other images if it changed. So the images
of VTAB-1k can be found from the original files alone, without TensorFlow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def sort_as_tfds(split: str, keys: Iterable[str | int]) -> NDArray[np.int64]:
    """The numbers of the keys, in the order of that split. `split` is the name there: train, validation or test."""
    digests = [hashlib.md5(f"{split}{key}".encode(), usedforsecurity=False).digest() for key in keys]
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), np.int64)
