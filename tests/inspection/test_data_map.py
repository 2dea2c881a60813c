"""The map of a data set: principal components as scikit-learn's, t-SNE that keeps groups apart, and the same map each time."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier

from vitreous.core.errors import VitreousError
from vitreous.inspection.data_map import principal_components, project_features


def blobs(count: int = 90, groups: int = 3, width: int = 20) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % groups
    centres = 12 * rng.normal(size=(groups, width)) / np.sqrt(width)
    return centres[labels] + rng.normal(size=(count, width)), labels


def same_but_for_signs(found: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * np.where(signs == 0, 1, signs), expected, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(60, 7), (12, 40), (5, 5), (200, 2)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_principal_components_are_those_of_scikit_learn(shape: tuple[int, int], offset: float) -> None:
    values = np.random.default_rng(1).normal(size=shape) * np.linspace(3, 1, shape[1]) + offset
    points, used = project_features(values, "pca")
    assert used == "pca"
    same_but_for_signs(points, PCA(2, svd_solver="full").fit_transform(values))


def test_all_fifty_components() -> None:
    values = np.random.default_rng(2).normal(size=(80, 64)) * np.linspace(5, 1, 64)
    same_but_for_signs(principal_components(values, 50), PCA(50, svd_solver="full").fit_transform(values))


def test_signs_do_not_depend_on_the_order_of_the_images() -> None:
    values = np.random.default_rng(3).normal(size=(25, 6))
    points = project_features(values, "pca")[0]
    np.testing.assert_allclose(project_features(values[::-1], "pca")[0], points[::-1], atol=1e-10)


def test_the_scale_of_features_is_the_scale_of_the_map() -> None:
    values = np.random.default_rng(4).normal(size=(25, 6))
    points = project_features(values, "pca")[0]
    for factor in (1e-12, 1e12):
        np.testing.assert_allclose(project_features(factor * values, "pca")[0], factor * points, rtol=1e-6, atol=1e-8 * factor)


def test_groups_stay_groups_under_tsne() -> None:
    features, labels = blobs()
    points, used = project_features(features, "tsne")
    assert used == "tsne"
    assert points.shape == (90, 2)
    nearest = KNeighborsClassifier(5).fit(points[::2], labels[::2])
    assert nearest.score(points[1::2], labels[1::2]) == 1.0


def test_the_same_map_each_time() -> None:
    features, _ = blobs(150)
    np.testing.assert_array_equal(project_features(features)[0], project_features(features.copy())[0])


def test_auto_takes_tsne_where_there_are_enough_images() -> None:
    features, _ = blobs(30)
    assert project_features(features)[1] == "tsne"
    assert project_features(features[:29])[1] == "pca"


def test_features_in_32_and_16_bits_are_taken() -> None:
    features, _ = blobs(20)
    for kind in (np.float32, np.float16):
        assert np.isfinite(project_features(features.astype(kind))[0]).all()


@pytest.mark.parametrize("method", ["auto", "pca", "tsne"])
def test_images_that_are_all_alike_lie_in_one_point(method: str) -> None:
    points, used = project_features(np.full((40, 8), 0.1), method)
    np.testing.assert_array_equal(points, np.zeros((40, 2)))
    assert used == "pca"


def test_duplicates() -> None:
    features, labels = blobs(20)
    doubled = np.concatenate([features, features, features])
    points, used = project_features(doubled)
    assert used == "tsne"
    assert np.isfinite(points).all()
    assert KNeighborsClassifier(3).fit(points, np.tile(labels, 3)).score(points, np.tile(labels, 3)) == 1.0


@pytest.mark.parametrize("count", [1, 2])
def test_one_and_two_images(count: int) -> None:
    features = np.array([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])[:count]
    points, used = project_features(features)
    assert used == "pca"
    expected = [[0.0, 0.0]] if count == 1 else [[2.5, 0.0], [-2.5, 0.0]]
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-12)


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_one_dimension(method: str) -> None:
    points, _ = project_features(np.arange(40.0)[:, None], method)
    assert np.isfinite(points).all()
    assert np.ptp(points[:, 0]) > 0


def test_what_a_mean_leaves_behind_is_not_drawn() -> None:
    """All variation lies along one direction, far from the origin: the second coordinate is nothing but rounding."""
    line = 1e6 + np.outer(np.random.default_rng(5).normal(size=50), np.array([1.0, 2.0, 3.0]))
    assert not project_features(line, "pca")[0][:, 1].any()


@pytest.mark.parametrize(
    ("features", "method", "said"),
    [
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "auto", "features: 1 of 4 values are not finite"),
        (np.array([[np.inf, 1.0]]), "pca", "not finite"),
        (np.zeros((0, 4)), "auto", "none of them empty"),
        (np.zeros(4), "auto", r"shape \(4,\)"),
        (np.eye(3), "tsne", "at least 4 images, not 3; choose pca"),
    ],
)
def test_what_cannot_be_mapped_is_named(features: NDArray[np.float64], method: str, said: str) -> None:
    with pytest.raises(VitreousError, match=said):
        project_features(features, method)


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    features, _ = blobs(40)
    expected = project_features(features, "pca")[0]
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)  # which makes its import fail
    points, used = project_features(features)
    assert used == "pca"
    np.testing.assert_array_equal(points, expected)
    with pytest.raises(VitreousError, match=r"not installed: pip install 'vitreous\[demo\]', or choose the projection pca"):
        project_features(features, "tsne")
