"""Random numbers for rendered images, by address: each is a function of (seed, scene, image, slot) and of nothing else.

Only 64-bit integer arithmetic is used, which every machine does alike; numpy's and torch's generators promise no such
thing from one version to the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitreous.data.sampling import mix_bits

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: neighbours end up far apart


def derive_keys(seed: int, scene: int, images: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A key for each image; no two images of a seed and a scene share one, because every step is one to one."""
    base = mix_bits(mix_bits(np.array([seed], np.uint64) + _ODD) + np.uint64(scene))
    return mix_bits(mix_bits(images * _ODD) ^ base)


def draw_uniform(key: NDArray[np.uint64], slot: NDArray[np.uint64] | int) -> NDArray[np.float64]:
    """Numbers in [0, 1); arrays of keys and slots broadcast."""
    return (mix_bits(key + np.asarray(slot, np.uint64) * _ODD) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_bytes(key: int, count: int) -> NDArray[np.uint8]:
    """Many small numbers at once, 0..255: for the texture of a surface and the noise of a camera."""
    words = mix_bits(np.array([key], np.uint64) + np.arange(1, count // 8 + 2, dtype=np.uint64) * _ODD)
    return words.astype("<u8").view(np.uint8)[:count]


class Draws:
    """The numbers of one image from a slot on, one after another, as the composer needs them."""

    def __init__(self, key: int, first: int, count: int) -> None:
        slots = np.arange(first, first + count, dtype=np.uint64)
        self._numbers = iter(draw_uniform(np.array([key], np.uint64), slots).tolist())

    def unit(self) -> float:
        return next(self._numbers)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.unit()

    def below(self, count: int) -> int:
        return int(self.unit() * count)

    def chance(self, probability: float) -> bool:
        return self.unit() < probability

    def key(self) -> int:
        return int(self.unit() * 2**53)
