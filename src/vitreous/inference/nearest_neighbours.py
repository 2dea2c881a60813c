"""Exact nearest neighbours by cosine similarity of features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from vitreous.core.errors import NonFiniteOutput

Floats = NDArray[np.float32]

_QUERIES = 512  # rows of a block of similarities, and
_AMONG = 4096  # columns: 8 MB
_FEW = 8  # queries


@dataclass(frozen=True, eq=False)
class Nearest:
    rows: NDArray[np.int64]  # (queries, k): the most similar first; of equal ones, the lower row
    similarities: Floats  # (queries, k), cosine: from -1 to 1


def nearest_neighbours(queries: Floats, among: Floats, count: int) -> Nearest:
    """The `count` rows of `among` (N, D) most similar to each of `queries` (Q, D), or all of them if there are fewer.

    Exact: everything is compared with everything, a block at a time. A vector of zeros has no direction; it is similar to
    nothing, which is 0.
    """
    count = min(count, len(among))
    starts = range(0, len(queries), _QUERIES)
    # The product of a few queries waits for memory, and threads would only wait for each other.
    with threadpool_limits(1 if len(queries) <= _FEW else None):
        blocks = [_nearest(normalise(queries[start : start + _QUERIES]), among, count) for start in starts]
    ranks = np.concatenate([np.zeros((0, count), np.int64), *blocks])
    return Nearest(ranks & 0xFFFFFFFF, np.float32(0) - _flip((ranks >> 32).astype(np.int32)).view(np.float32))


def _nearest(queries: Floats, among: Floats, count: int) -> NDArray[np.int64]:
    """The ranks (Q, count) of the most similar, in order."""
    best = np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(among), _AMONG):
        block = among[start : start + _AMONG]
        found = queries @ block.T / _lengths(block)
        best = np.concatenate([best, _ranks(found, np.arange(start, start + found.shape[1]))], axis=1)
        if best.shape[1] > count:
            best = np.partition(best, count - 1, axis=1)[:, :count]
    return np.sort(best, axis=1)


def _ranks(similarities: Floats, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lower for the more similar, and of equals for the lower row: whole numbers of which no two are the same, because a
    partition takes any of those that are. The similarity is in the upper half, the row in the lower one."""
    bits = (np.float32(0) - similarities).view(np.int32)
    return (_flip(bits).astype(np.int64) << 32) | rows


def _flip(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Read as an integer, a float's bits keep its order, but those of negative ones run backwards."""
    return np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int32)


def normalise(vectors: Floats) -> Floats:
    """Of length 1, but for vectors of zeros."""
    return vectors / _lengths(vectors)[:, None]


def _lengths(vectors: Floats) -> Floats:
    """1 for a vector of zeros. Cheaper than a copy of everything that is divided by its length: it stays in the cache."""
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    if not np.isfinite(lengths).all():
        raise NonFiniteOutput("features are not finite (NaN or infinity)")
    return np.where(lengths > 0, lengths, np.float32(1))
