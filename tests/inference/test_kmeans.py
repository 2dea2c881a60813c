"""k-means: as good as scikit-learn's, the same for the same seed, and no cluster lost."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from vitreous.inference import kmeans as module
from vitreous.inference.kmeans import kmeans
from vitreous.inference.nearest_neighbours import normalise


def blobs(count: int = 300, centres: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = np.arange(count) % centres
    means = np.eye(8, dtype=np.float32)[:centres] * 10
    lengths = rng.uniform(0.5, 5, (count, 1))  # which k-means on directions does not see
    return truth, ((means[truth] + rng.normal(0, 0.2, (count, 8))) * lengths).astype(np.float32)


def test_clusters_that_are_apart_are_found() -> None:
    truth, values = blobs()
    found = kmeans(values, 4)
    pairs = {(int(a), int(b)) for a, b in zip(truth, found.assignments, strict=True)}
    assert len(pairs) == 4
    points = normalise(values)
    assert np.allclose(found.distances, ((points - found.centres[found.assignments]) ** 2).sum(axis=1), atol=1e-5)
    assert np.array_equal(kmeans(values, 4).assignments, found.assignments)


def test_about_as_tight_as_scikit_learn() -> None:
    values = np.random.default_rng(1).standard_normal((500, 6)).astype(np.float32)
    ours = min(kmeans(values, 7, seed).distances.sum() for seed in range(5))
    theirs = KMeans(7, n_init=5, random_state=0).fit(normalise(values)).inertia_
    assert ours <= 1.02 * theirs


def test_a_sample_stands_for_more_rows_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, values = blobs(600)
    monkeypatch.setattr(module, "SAMPLE", 100)
    monkeypatch.setattr(module, "_BLOCK", 64)
    found = kmeans(values, 4)
    assert len({(int(a), int(b)) for a, b in zip(truth, found.assignments, strict=True)}) == 4


def test_fewer_different_points_than_clusters() -> None:
    values = np.repeat(np.eye(2, 3, dtype=np.float32), 5, axis=0)
    found = kmeans(values, 4)
    assert len(set(found.assignments.tolist())) == 2
    assert found.distances.max() < 1e-6
