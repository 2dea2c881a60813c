"""Similarity of positions: against scikit-learn's cosine similarity, for every kind of table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from known_attention import hybrid, itself, looking, small
from sklearn.metrics.pairwise import cosine_similarity

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inspection.position_embeddings import position_similarity
from vitreous.models.build import create

from conftest import random_checkpoint


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(pool="gap"),
        dict(registers=2),
        dict(registers=2, position_prefix=3),
        dict(position_placement="every"),
        dict(positions="2d"),
        dict(positions="sincos"),
    ],
)
def test_against_scikit_learn(options: dict[str, Any]) -> None:
    model = small(**options)
    table = model.positions[0]((2, 3)).detach().double().numpy()[-6:]
    found = position_similarity(model)
    assert (found.shape, found.dtype) == ((2, 3, 2, 3), np.float32)
    assert np.allclose(found.reshape(6, 6), cosine_similarity(table), atol=1e-6)
    assert np.abs(found).max() <= 1
    assert np.allclose([found[r, c, r, c] for r in range(2) for c in range(3)], 1)


def test_a_hybrid() -> None:
    model = hybrid()
    table = model.positions[0].table.detach().double().numpy()[1:]
    assert np.allclose(position_similarity(model).reshape(6, 6), cosine_similarity(table), atol=1e-6)


def test_which_tile_is_whose() -> None:
    """Positions that are alike within a row and have nothing in common between rows."""
    model = looking([itself], grid=(2, 3))
    with torch.no_grad():
        model.positions[0].table[1:] = torch.eye(9)[[0, 0, 0, 1, 1, 1]] * torch.arange(1, 7.0)[:, None]
    found = position_similarity(model)
    assert found[0, 2].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert found[1, 0].tolist() == [[0, 0, 0], [1, 1, 1]]


def test_a_position_of_zeros_is_like_none() -> None:
    model = small()
    with torch.no_grad():
        model.positions[0].table[1] = 0
    found = position_similarity(model)
    assert not found[0, 0].any()
    assert np.isfinite(found).all()


def test_a_classifier() -> None:
    classifier = Classifier(random_checkpoint("ViT-Ti/4", image_size=(8, 12), width=24, depth=1, heads=3, mlp=32, classes=2))
    assert np.array_equal(position_similarity(classifier), position_similarity(classifier.model))


@pytest.mark.parametrize("kind", ["none", "relative"])
def test_no_table(kind: str) -> None:
    with pytest.raises(VitreousError, match=f"{kind}.*use a model with positions '1d'"):
        position_similarity(small(positions=kind, position_prefix=0))


def test_a_resnet() -> None:
    with pytest.raises(VitreousError, match="no position embeddings; use a ViT"):
        position_similarity(create("R26x1", classes=2, image_size=32))
