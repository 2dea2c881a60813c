"""Filters of the embedding: against scikit-learn's and numpy's principal components, and by eye for first convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from known_attention import hybrid, small
from sklearn.decomposition import PCA

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inspection.embedding_filters import as_images, filters, principal
from vitreous.models.build import create

from conftest import random_checkpoint


def test_against_scikit_learn() -> None:
    model = small(width=48, heads=3, patch=(4, 2))
    # A few directions far stronger than others, so that their order is no accident.
    with torch.no_grad():
        model.embedding.weight *= torch.linspace(2, 0.1, 24).view(1, 3, 4, 2)
    samples = model.embedding.weight.detach().permute(0, 2, 3, 1).reshape(48, -1).double().numpy()
    known = PCA(n_components=10, svd_solver="full").fit(samples)
    found = filters(model, 10)
    assert found.shape == (10, 4, 2, 3)
    assert found.dtype == np.float32
    flat = found.reshape(10, -1)
    agreement = np.abs((flat * known.components_).sum(axis=1))  # both of length 1, each of either sign
    assert np.allclose(agreement, 1, atol=1e-5)
    variance = (samples @ flat.T).var(axis=0)
    assert np.all(np.diff(variance) < 0), "strongest first"
    assert np.allclose(variance * 48 / 47, known.explained_variance_, rtol=1e-4)


def test_components_are_where_the_filters_vary() -> None:
    """Filters that differ only in the red of one pixel and, less, in the green of another; their common part counts nothing."""
    made = np.full((6, 2, 2, 3), 5.0)
    made[:, 0, 1, 0] += [3, -3, 3, -3, 3, -3]
    made[:, 1, 0, 1] += [1, 1, -1, -1, 0, 0]
    found = principal(made, 28)
    assert found.shape == (2, 2, 2, 3), "no more than there are"
    expected = np.zeros((2, 2, 2, 3))
    expected[0, 0, 1, 0] = expected[1, 1, 0, 1] = 1
    assert np.allclose(found, expected, atol=1e-9)


def test_as_many_as_asked_and_the_same_each_time() -> None:
    model = small()
    assert filters(model).shape == (23, 4, 4, 3), "24 filters have 23 components beside their mean"
    assert np.array_equal(filters(model, 7), filters(model, 28)[:7])
    assert np.all(filters(model).reshape(23, -1).max(axis=1) == np.abs(filters(model)).reshape(23, -1).max(axis=1))
    with torch.no_grad():
        model.embedding.weight.neg_()  # turned over, the filters vary along the same lines
    assert np.allclose(np.abs(filters(small(), 7)), np.abs(filters(model, 7)), atol=1e-5)
    assert np.allclose(filters(small(), 7), filters(model, 7), atol=1e-5)


@pytest.mark.parametrize("make", [hybrid, lambda: create("R26x1", classes=2, image_size=32, width=32)])
def test_first_convolutions(make: Any) -> None:
    model = make()
    kernel = model.trunk.root.weight.detach().double()
    kernel = (kernel - kernel.mean((1, 2, 3), keepdim=True)) / kernel.std((1, 2, 3), keepdim=True, correction=0)
    assert filters(model).shape == (28, 7, 7, 3)
    assert np.allclose(filters(model), kernel[:28].permute(0, 2, 3, 1), atol=1e-3)
    assert filters(model, 64).shape == (32, 7, 7, 3), "all of them"


def test_a_classifier_and_other_precisions() -> None:
    classifier = Classifier(random_checkpoint("ViT-Ti/4", image_size=8, width=24, depth=1, heads=3, mlp=32, classes=2))
    exact = filters(classifier, 3)
    assert exact.shape == (3, 4, 4, 3)
    classifier.model.to(torch.bfloat16)
    assert np.allclose(filters(classifier, 3), exact, atol=0.1)


def test_as_pictures() -> None:
    made = np.stack(
        [np.linspace(-2, 2, 12).reshape(2, 2, 3), np.linspace(0.5, 0.6, 12).reshape(2, 2, 3), np.full((2, 2, 3), 7.0)]
    )
    found = as_images(made)
    assert (found.shape, found.dtype) == ((3, 2, 2, 3), np.uint8)
    assert found[0].ravel().tolist() == [0, 23, 46, 70, 93, 116, 139, 162, 185, 209, 232, 255]
    assert np.array_equal(found[0], found[1]), "each by itself"
    assert set(found[2].ravel().tolist()) == {128}
    grey = as_images(np.arange(4.0).reshape(1, 2, 2, 1))
    assert grey[0, :, :, 0].tolist() == [[0, 85], [170, 255]]
    assert np.array_equal(grey[..., 0], grey[..., 2])
    assert as_images(np.random.default_rng(0).normal(size=(4, 2, 2, 5))).shape == (4, 2, 2, 3)


def test_faults() -> None:
    with pytest.raises(VitreousError, match="no embedding"):
        filters(torch.nn.Linear(2, 2))
    alike, damaged = small(), small()
    with torch.no_grad():
        alike.embedding.weight.copy_(alike.embedding.weight[:1].clone().expand_as(alike.embedding.weight))
        damaged.embedding.weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(VitreousError, match="alike"):
        filters(alike)
    with pytest.raises(VitreousError, match="not finite"):
        filters(damaged)
