"""Patch features: against the network written out in numpy, cosines by a loop, and scikit-learn's principal components."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_attention import KINDS, hybrid, pictures, run_by_numpy, small
from sklearn.decomposition import PCA

from vitreous.core.errors import VitreousError
from vitreous.inspection import component_colours, patch_components, patch_features, patch_similarity
from vitreous.inspection.patches import compute_patch_components, compute_patch_similarity, pick_patches
from vitreous.models.build import create


def final_norm(tokens: np.ndarray, model: torch.nn.Module) -> np.ndarray:
    weight, bias = (tensor.detach().double().numpy() for tensor in (model.norm.weight, model.norm.bias))
    centred = tokens - tokens.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(centred.var(axis=-1, keepdims=True) + model.norm.eps) * weight + bias


@pytest.mark.parametrize("kind", [*KINDS, "hybrid"])
def test_against_numpy(kind: str) -> None:
    model = hybrid() if kind == "hybrid" else small(**KINDS[kind])
    images, prefix = pictures(model, 3), model.prefix_tokens
    rows, columns = model.config.grid_of(tuple(images.shape[-2:]))
    _, tokens = run_by_numpy(model, images)
    expected = final_norm(tokens[-1][:, prefix:], model).reshape(3, rows, columns, -1)
    assert np.allclose(patch_features(model, images, batch_size=2), expected, atol=1e-4)

    similarity = patch_similarity(model, images, batch_size=2)
    assert similarity.shape == (3, rows, columns, rows, columns)
    for image in range(3):
        for i, j, k, l in np.ndindex(rows, columns, rows, columns):  # noqa: E741
            a, b = expected[image, i, j], expected[image, k, l]
            assert similarity[image, i, j, k, l] == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)), abs=1e-4)


@pytest.mark.parametrize("grid", [(5, 7), (1, 9)])
def test_components_are_those_of_scikit_learn(grid: tuple[int, int]) -> None:
    features = np.random.default_rng(0).normal(size=(4, *grid, 12)) * np.geomspace(5, 0.1, 12)
    components, share = compute_patch_components(features)
    pca = PCA(3).fit(features.reshape(-1, 12))
    signs = np.sign(pca.components_[np.arange(3), np.abs(pca.components_).argmax(axis=1)])  # the largest weight positive
    expected = (pca.transform(features.reshape(-1, 12)) * signs).reshape(4, *grid, 3)
    assert np.allclose(components, expected, atol=1e-4)
    assert share == pytest.approx(pca.explained_variance_ratio_.sum())


def test_components_are_of_all_images_together() -> None:
    """So that the same features have the same colour in two images, in whatever order they come."""
    model = small()
    one, two = pictures(model, 2)
    both = patch_components(model, torch.stack([one, two, one]))
    colours = component_colours(both)
    assert np.array_equal(colours[0], colours[2])
    turned = component_colours(patch_components(model, torch.stack([two, one, one])))
    assert np.abs(turned[1].astype(int) - colours[0]).max() <= 1
    assert not np.allclose(patch_components(model, one[None])[0], both[0], atol=1e-3)


def test_colours_go_from_the_lowest_to_the_highest_value_of_all_images() -> None:
    values = np.random.default_rng(0).normal(size=(5, 10, 10, 3)) * (1, 10, 0)
    colours = component_colours(values)
    for channel in range(2):
        low, high = np.percentile(values[..., channel], (1, 99))
        expected = 255 * np.clip((values[..., channel] - low) / (high - low), 0, 1)
        assert np.abs(colours[..., channel] - expected).max() <= 0.5 + 1e-9
        assert (colours[..., channel].min(), colours[..., channel].max()) == (0, 255)
    assert (colours[..., 2] == 128).all()  # nothing varies


def test_where_little_varies() -> None:
    model = small(image_size=(4, 4))  # one patch
    images = pictures(model, 2)
    assert patch_similarity(model, images).shape == (2, 1, 1, 1, 1)
    assert patch_similarity(model, images).ravel() == pytest.approx([1, 1], abs=1e-6)
    assert not patch_components(model, images)[..., 1:].any()
    zero = np.zeros((2, 3, 4))
    assert not compute_patch_similarity(zero).any()  # no direction, nothing in common
    components, share = compute_patch_components(zero[None])
    assert (components.any(), share) == (False, 0.0)


def test_chosen_patches_differ_most() -> None:
    vectors = np.array([[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0, 0.9, 0.2], [-1, 0, 0], [0, 0, 1]])
    similarity = compute_patch_similarity(vectors.reshape(2, 3, 3))
    assert pick_patches(similarity, (0, 0), 3) == [(0, 0), (1, 1), (0, 2)]
    assert pick_patches(similarity, (0, 1), 20)[0] == (0, 1)
    assert sorted(pick_patches(similarity, (0, 1), 20)) == [*np.ndindex(2, 3)]


def test_what_has_no_patches_is_refused() -> None:
    with pytest.raises(VitreousError, match="ResNet"):
        patch_features(create("R26x1", classes=2), torch.zeros(1, 3, 32, 32))
    with pytest.raises(VitreousError, match="patch features: 1 of 12 values are not finite"):
        compute_patch_similarity(np.where(np.arange(12).reshape(2, 2, 3) == 5, np.nan, 1.0))
