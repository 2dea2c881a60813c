"""Accuracy by nearest neighbours, as DINO reports it: the k = 20 most similar training images vote, each by exp(cosine / 0.07).

[Wu et al. 2018; Caron et al. 2021] There is nothing to fit and nothing to choose; a linear classifier is usually better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitreous.inference.features import Features
from vitreous.inference.nearest_neighbours import nearest_neighbours

NEIGHBOURS, TEMPERATURE = 20, 0.07  # of DINO's eval_knn.py


def classify_by_neighbours(
    train: Features, queries: NDArray[np.float32], k: int = NEIGHBOURS, temperature: float = TEMPERATURE
) -> NDArray[np.int64]:
    """The class with the most votes for each row of `queries` (m, D); of fewer than k training images, all vote."""
    near = nearest_neighbours(queries, train.values, k)
    # Relative to the most similar one, so that nothing overflows.
    weights = np.exp((near.similarities.astype(np.float64) - near.similarities[:, :1]) / temperature)
    named = np.empty(len(queries), np.int64)
    for query, rows in enumerate(near.rows):
        votes = np.zeros(len(train.classes))
        for row, weight in zip(rows.tolist(), weights[query], strict=True):
            votes[list(set(train.labels[row]))] += weight  # for each of its labels
        named[query] = votes.argmax()
    return named
