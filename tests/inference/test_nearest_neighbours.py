"""Nearest training images: exact, in bounded memory, and the same as scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from vitreous.inference import nearest_neighbours as module
from vitreous.inference.nearest_neighbours import nearest_neighbours


@pytest.mark.parametrize(("queries", "among", "count"), [(1, 1, 1), (7, 50, 3), (40, 300, 10)])
def test_against_scikit_learn(queries: int, among: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUERIES", 16)
    monkeypatch.setattr(module, "_AMONG", 64)  # several blocks in both directions
    random = np.random.default_rng(0)
    some, others = (random.standard_normal((n, 12)).astype(np.float32) * 5 for n in (queries, among))
    found = nearest_neighbours(some, others, count)
    reference = NearestNeighbors(n_neighbors=count, metric="cosine", algorithm="brute").fit(others.astype(np.float64))
    distances, rows = reference.kneighbors(some.astype(np.float64))
    assert np.array_equal(found.rows, rows)
    assert np.allclose(found.similarities, 1 - distances, atol=1e-6)


def test_length_does_not_count_and_zeros_are_like_nothing() -> None:
    among = np.array([[0, 0], [100, 1], [1, 1], [-1, 0]], np.float32)
    found = nearest_neighbours(np.array([[2, 2], [0, 0]], np.float32), among, 4)
    assert found.rows.tolist() == [[2, 1, 0, 3], [0, 1, 2, 3]]
    assert found.similarities[0].tolist() == pytest.approx([1, 101 / np.sqrt(2 * 10001), 0, -np.sqrt(0.5)], abs=1e-6)
    assert not found.similarities[1].any()


def test_of_equal_ones_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AMONG", 2)
    found = nearest_neighbours(np.ones((1, 3), np.float32), np.ones((7, 3), np.float32), 7)
    assert found.rows.tolist() == [[0, 1, 2, 3, 4, 5, 6]]


def test_of_more_equal_ones_than_are_asked_for_the_first() -> None:
    """As where training images lie there twice. A selection that is not told which of them to take takes any."""
    among = np.tile(np.eye(4, dtype=np.float32), (25, 1))
    found = nearest_neighbours(np.array([[1, 0, 0, 0], [0, -1, 0, 0]], np.float32), among, 3)
    assert found.rows.tolist() == [[0, 4, 8], [0, 2, 3]]


def test_fewer_than_asked() -> None:
    found = nearest_neighbours(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[:2], 5)
    assert found.rows.shape == (3, 2)
    assert nearest_neighbours(np.zeros((0, 3), np.float32), np.eye(3, dtype=np.float32), 2).rows.shape == (0, 2)
