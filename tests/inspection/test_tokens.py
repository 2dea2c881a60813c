"""Tokens through the depth: against the network written out in numpy, and outliers that were put there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from known_attention import KINDS, hybrid, itself, looking, pictures, run_by_numpy, small

from vitreous.core.errors import VitreousError
from vitreous.inspection.tokens import mean_similarity, norm_quantiles, outliers, token_change, token_norms, token_similarity
from vitreous.models.build import create


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("kind", [*KINDS, "hybrid"])
def test_against_numpy(kind: str) -> None:
    model = hybrid() if kind == "hybrid" else small(**KINDS[kind])
    images, prefix = pictures(model, 3), model.prefix_tokens
    _, tokens = run_by_numpy(model, images)  # (depth + 1, B, N, D)

    norms = token_norms(model, images, batch_size=2)
    assert norms.shape == tokens.shape[:3]
    assert np.allclose(norms, np.sqrt((tokens**2).sum(-1)), rtol=1e-5)

    patches = tokens[:, :, prefix:]
    n = patches.shape[2]
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    alike = [np.mean([cosine(image[i], image[j]) for image in depth for i, j in pairs]) for depth in patches]
    assert np.allclose(token_similarity(model, images, batch_size=2), alike, atol=1e-5)

    changes = [
        np.mean([cosine(after[b, i], before[b, i]) for b in range(3) for i in range(n)])
        for before, after in itertools.pairwise(patches)
    ]
    found = token_change(model, images, batch_size=2)
    assert found.shape == (3,)
    assert np.allclose(found, changes, atol=1e-5)
    assert found.max() < 0.999  # blocks that change something, or little was compared


def test_a_model_that_changes_nothing() -> None:
    """Codes of positions, all different: similarity 0; no block adds anything: no change, and length 1 throughout."""
    model = looking([itself], [itself], registers=1)
    images = pictures(model)
    assert np.allclose(token_norms(model, images), 1)
    assert token_norms(model, images).shape == (3, 2, 8)
    assert np.allclose(token_similarity(model, images), 0, atol=1e-6)
    assert np.allclose(token_change(model, images), 1)


def test_quantiles_are_of_all_patches_together() -> None:
    norms = np.random.default_rng(0).gamma(2.0, size=(4, 5, 11))
    expected = [np.percentile(depth[:, 2:], [0, 25, 50, 75, 100]) for depth in norms]
    assert np.allclose(norm_quantiles(norms, prefix=2), expected)
    assert norm_quantiles(norms, prefix=2).shape == (4, 5)


def test_similarity_from_the_length_of_the_sum() -> None:
    made = torch.nn.functional.normalize(torch.randn(2, 300, 16, generator=torch.Generator().manual_seed(1)), dim=-1)
    full = made.double().numpy() @ made.double().numpy().transpose(0, 2, 1)
    expected = (full.sum((1, 2)) - np.trace(full, axis1=1, axis2=2)) / (300 * 299)
    assert np.allclose(mean_similarity(made), expected, atol=1e-7)
    assert torch.allclose(mean_similarity(made[:, :1].expand(-1, 5, -1)), torch.ones(2))
    assert mean_similarity(made[:, :1]).isnan().all(), "one patch alone has no other"


def test_outliers_are_found_where_they_were_put() -> None:
    drawn = np.random.default_rng(0).normal(40, 4, size=(13, 3, 1 + 256))
    drawn[:, :, 0] = 500  # the class token is no patch
    drawn[-1, 0, [1 + 7, 1 + 200]] = 300, 120
    drawn[-2, 1] *= 10  # not the last block
    found = outliers(drawn, 1)
    assert (found.shape, found.dtype) == ((3, 256), np.bool_)
    assert [(int(image), int(patch)) for image, patch in np.argwhere(found)] == [(0, 7), (0, 200)]
    assert np.array_equal(outliers(drawn[:, :1], 1), found[:1]), "whatever other images there are"
    assert np.array_equal(outliers(drawn * 1000, 1), found), "whatever the scale"


def test_what_is_no_outlier() -> None:
    """Small differences, however far from a median that all the others share; and lengths that vary widely by nature."""
    nearly_alike = np.ones((1, 1, 100))
    nearly_alike[..., 3] = 1.9
    assert not outliers(nearly_alike, 0).any()
    nearly_alike[..., 3] = 2.1
    assert np.flatnonzero(outliers(nearly_alike, 0)).tolist() == [3]
    assert not outliers(np.linspace(1, 30, 100).reshape(1, 1, 100), 0).any()
    assert not outliers(np.zeros((1, 2, 100)), 0).any()


def test_long_tokens_of_a_model() -> None:
    """The last block writes a great length into one patch."""
    model = looking([itself], [itself])
    with torch.no_grad():
        model.blocks[-1].mlp.up.weight[0, 4] = 1  # a unit that hears the code of token 4, patch 3
        model.blocks[-1].mlp.down.weight[20 % model.config.width, 0] = 100
    norms = token_norms(model, pictures(model))
    assert np.argwhere(outliers(norms, 1)).tolist() == [[0, 3], [1, 3]]
    assert not outliers(norms[:-1], 1).any()


def test_a_resnet_has_no_tokens() -> None:
    resnet = create("R26x1", classes=2, image_size=32)
    for function in (token_norms, token_similarity, token_change):
        with pytest.raises(VitreousError, match="no attention"):
            function(resnet, torch.randn(1, 3, 32, 32))
