"""Entropy of attention: exact where attention was made by hand, equal to loops in numpy on models of every kind."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from known_attention import ALL_ALIKE, KINDS, hybrid, itself, last_patch, looking, pictures, run_by_numpy, small

from vitreous.core.errors import VitreousError
from vitreous.inspection.entropy import attention_entropy, compute_entropy
from vitreous.models.build import create


@pytest.mark.parametrize("kind", KINDS)
def test_against_loops(kind: str) -> None:
    model = small(**KINDS[kind])
    images = pictures(model)
    attention, _ = run_by_numpy(model, images)
    expected = np.zeros((len(attention), 3))
    for layer, image, head, query in np.ndindex(attention.shape[:4]):
        row = attention[layer, image, head, query]
        expected[layer, head] -= sum(p * math.log2(p) for p in row if p > 0) / (len(images) * len(row))
    found = attention_entropy(model, images, batch_size=1)
    assert found.dtype == np.float64
    assert np.allclose(found, expected, rtol=1e-5)
    assert len(np.unique(found.round(5))) == found.size


def test_a_hybrid() -> None:
    model = hybrid()
    images = pictures(model)
    attention, _ = run_by_numpy(model, images)
    assert np.allclose(attention_entropy(model, images), -(attention * np.log2(attention)).sum(-1).mean((1, 3)), rtol=1e-5)


def test_exact_where_attention_is_known() -> None:
    """All alike: log2 of the tokens, leading ones counted. One token: nothing, and no nan from 0 log 0."""
    model = looking([ALL_ALIKE, itself], [last_patch, ALL_ALIKE], registers=1)  # 6 patches and 2 before them
    assert attention_entropy(model, pictures(model)).round(6).tolist() == [[3.0, 0.0], [0.0, 3.0]]


def test_the_formula_itself() -> None:
    attention = torch.tensor([[[[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 1.0], [0.5, 0.25, 0.25, 0.0]]]])
    assert compute_entropy(attention).item() == pytest.approx((1 + 2 + 0 + 1.5) / 4)
    assert compute_entropy(attention.to(torch.float16)).dtype == torch.float32


def test_a_resnet_has_none() -> None:
    with pytest.raises(VitreousError, match="no attention"):
        attention_entropy(create("R26x1", classes=2, image_size=32), torch.randn(1, 3, 32, 32))
