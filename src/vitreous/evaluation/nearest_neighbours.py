"""Exact nearest neighbours by cosine similarity of features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError

Floats = NDArray[np.float32]

_QUERIES = 512  # rows of a block of similarities, and
_AMONG = 8192  # columns: 16 MB


@dataclass(frozen=True, eq=False)
class Nearest:
    rows: NDArray[np.int64]  # (queries, k): the most similar first; of equal ones, the lower row
    similarities: Floats  # (queries, k), cosine: from -1 to 1


def nearest_neighbours(queries: Floats, among: Floats, count: int) -> Nearest:
    """The `count` rows of `among` (N, D) most similar to each of `queries` (Q, D), or all of them if there are fewer.

    Exact: everything is compared with everything, a block at a time. A vector of zeros has no direction; it is similar to
    nothing, which is 0.
    """
    if queries.ndim != 2 or among.ndim != 2 or queries.shape[1] != among.shape[1]:
        raise VitreousError(
            f"features of shapes {queries.shape} and {among.shape} cannot be compared; use one model's for both"
        )
    if count < 1:
        raise VitreousError(f"{count} neighbours: ask for at least 1")
    count = min(count, len(among))
    rows = np.zeros((len(queries), count), np.int64)
    similarities = np.zeros((len(queries), count), np.float32)
    for start in range(0, len(queries), _QUERIES):
        part = slice(start, start + _QUERIES)
        rows[part], similarities[part] = _of_block(_directions(queries[part]), among, count)
    return Nearest(rows, similarities)


def _of_block(queries: Floats, among: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
    best = np.zeros((len(queries), 0), np.float32)
    rows = np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(among), _AMONG):
        found = queries @ _directions(among[start : start + _AMONG]).T
        own = np.broadcast_to(np.arange(start, start + found.shape[1]), found.shape)
        best, rows = np.concatenate([best, found], axis=1), np.concatenate([rows, own], axis=1)
        if best.shape[1] > count:
            kept = np.argpartition(_ranks(best, rows), count - 1, axis=1)[:, :count]
            best, rows = np.take_along_axis(best, kept, axis=1), np.take_along_axis(rows, kept, axis=1)
        order = np.argsort(_ranks(best, rows), axis=1)
        best, rows = np.take_along_axis(best, order, axis=1), np.take_along_axis(rows, order, axis=1)
    return rows, best


def _ranks(similarities: Floats, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lower for the more similar, and of equals for the lower row: whole numbers of which no two are the same, because a
    partition takes any of those that are. Read as an integer, a float's bits keep its order, but those of negative ones
    run backwards."""
    bits = (np.float32(0) - similarities).view(np.int32)
    ordered = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.astype(np.int64) << 32) | rows


def _directions(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)
