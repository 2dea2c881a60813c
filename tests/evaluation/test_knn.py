"""The k-NN classifier against DINO's eval_knn.py, written out in torch, and against scikit-learn's."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from vitreous.evaluation.knn import classify_by_neighbours
from vitreous.inference.features import Features


def made(count: int, seed: int, classes: int = 7) -> tuple[Features, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, classes, count)
    values = (np.random.default_rng(9).normal(size=(classes, 16))[targets] + 1.5 * rng.normal(size=(count, 16))).astype("f4")
    ids = tuple(map(str, range(count)))
    return Features(values, tuple((int(t),) for t in targets), ids, np.arange(count), tuple("abcdefg"[:classes])), targets


def as_dino(train: Features, targets: np.ndarray, queries: np.ndarray, k: int, temperature: float) -> np.ndarray:  # type: ignore[type-arg]
    x, z = (torch.nn.functional.normalize(torch.from_numpy(part).double(), dim=1) for part in (train.values, queries))
    distances, indices = (z @ x.T).topk(k, largest=True, sorted=True)
    neighbours = torch.from_numpy(targets)[indices]
    one_hot = torch.nn.functional.one_hot(neighbours, len(train.classes)).double()
    return (one_hot * (distances / temperature).exp()[:, :, None]).sum(dim=1).argmax(dim=1).numpy()  # type: ignore[no-any-return]


def test_it_is_dinos() -> None:
    (train, targets), (test, _) = made(300, 0), made(200, 1)
    for k, temperature in ((20, 0.07), (5, 0.5), (1, 0.07)):
        named = classify_by_neighbours(train, test.values, k, temperature)
        assert np.array_equal(named, as_dino(train, targets, test.values, k, temperature))


def test_with_equal_votes_it_is_scikit_learns() -> None:
    (train, targets), (test, _) = made(60, 0), made(100, 1)
    peer = KNeighborsClassifier(n_neighbors=1, metric="cosine").fit(train.values, targets)
    assert np.array_equal(classify_by_neighbours(train, test.values, 1), peer.predict(test.values))


def test_few_images_all_vote_and_an_image_votes_for_each_of_its_labels() -> None:
    values = np.eye(3, dtype=np.float32)
    train = Features(values, ((0,), (1, 2), (2,)), ("x", "y", "z"), np.arange(3), ("a", "b", "c"))
    queries = np.array([[1, 0, 0], [0, 1, 0.9]], np.float32)
    assert classify_by_neighbours(train, queries).tolist() == [0, 2]
