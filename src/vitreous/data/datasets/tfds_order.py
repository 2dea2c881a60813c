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
    salted = hashlib.md5(split.encode(), usedforsecurity=False)
    digests = bytearray()
    for key in keys:
        digest = salted.copy()
        digest.update(str(key).encode())
        digests += digest.digest()
    halves = np.frombuffer(bytes(digests), ">u8").reshape(-1, 2)  # a digest is a number of 128 bits
    return np.lexsort((halves[:, 1], halves[:, 0])).astype(np.int64)
