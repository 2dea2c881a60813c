"""k-means on normalised features: Lloyd's rounds from centres that k-means++ draws (Arthur and Vassilvitskii, 2007)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.inference.nearest_neighbours import Floats, normalise

SAMPLE = 65_536  # rows that centres are fitted to; more would move them by less than another seed does
ROUNDS = 100
_BLOCK = 4096  # rows whose distances to all centres are in memory


@dataclass(frozen=True, eq=False)
class Clustering:
    centres: Floats  # (K, D): means of normalised features
    assignments: NDArray[np.int64]  # (n,): the nearest centre of each
    distances: Floats  # (n,): squared, to it


def kmeans(values: Floats, count: int, seed: int = 0) -> Clustering:
    """`count` clusters of the rows of `values` (n, D) by direction; the same for the same seed."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(len(values), SAMPLE, replace=False)) if len(values) > SAMPLE else slice(None)
    sample = normalise(values[rows])
    centres = _draw_centres(sample, count, rng)
    before: NDArray[np.int64] | None = None
    for _ in range(ROUNDS):
        nearest, distances = _assign(sample, centres)
        if before is not None and np.array_equal(nearest, before):
            break
        before, centres = nearest, _means(sample, nearest, distances, count)
    blocks = [_assign(normalise(values[start : start + _BLOCK]), centres) for start in range(0, len(values), _BLOCK)]
    return Clustering(centres, np.concatenate([block[0] for block in blocks]), np.concatenate([block[1] for block in blocks]))


def _draw_centres(points: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Each centre a point, drawn in proportion to the squared distance from the centres before it: of a few such draws, the
    one that leaves the least distance to all points."""
    chosen = [int(rng.integers(len(points)))]
    nearest = _squared(points, points[chosen])[:, 0]
    draws = 2 + int(np.log(count))
    while len(chosen) < count:
        ends = np.cumsum(nearest, dtype=np.float64)
        drawn = np.minimum(np.searchsorted(ends, rng.random(draws) * ends[-1], side="right"), len(points) - 1)
        left = np.minimum(nearest[:, None], _squared(points, points[drawn]))
        best = int(left.sum(axis=0).argmin())
        chosen.append(int(drawn[best]))
        nearest = left[:, best]
    return points[chosen]


def _squared(points: Floats, centres: Floats) -> Floats:
    """Squared distances (n, K)."""
    lengths = np.einsum("nd,nd->n", points, points)[:, None] + np.einsum("kd,kd->k", centres, centres)
    return np.maximum(0, lengths - 2 * (points @ centres.T))


def _assign(points: Floats, centres: Floats) -> tuple[NDArray[np.int64], Floats]:
    """The nearest centre of each point, the first of equal ones, and the squared distance to it."""
    nearest, distances = np.zeros(len(points), np.int64), np.zeros(len(points), np.float32)
    for start in range(0, len(points), _BLOCK):
        block = slice(start, start + _BLOCK)
        squared = _squared(points[block], centres)
        nearest[block], distances[block] = squared.argmin(axis=1), squared.min(axis=1)
    return nearest, distances


def _means(points: Floats, nearest: NDArray[np.int64], distances: Floats, count: int) -> Floats:
    """The mean of each cluster. One without points takes the point that lies farthest from its own centre."""
    order = np.argsort(nearest, kind="stable")
    there, starts = np.unique(nearest[order], return_index=True)
    sums = np.add.reduceat(points[order], starts, axis=0)
    centres = np.zeros((count, points.shape[1]), np.float32)
    centres[there] = sums / np.diff(np.append(starts, len(points)))[:, None]
    empty = np.setdiff1d(np.arange(count), there)
    centres[empty] = points[np.argsort(-distances, kind="stable")[: len(empty)]]
    return centres
