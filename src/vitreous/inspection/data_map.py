"""A map of a data set: features projected to the plane, similar images close together.

`pca` is a shadow: the two directions in which the features vary most. Distances in it are real, but much is hidden behind it.
`tsne` (van der Maaten and Hinton, 2008) keeps neighbours together instead, so that groups are seen; how far apart groups lie,
and how wide they are, means little.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitreous.core.errors import VitreousError
from vitreous.inference.features import Features
from vitreous.inspection.checked_arrays import check_finite

Projection = Literal["auto", "pca", "tsne", "none"]
ENOUGH = 30  # images from which neighbourhoods say more than a plain projection
_FEWEST = 4  # for t-SNE: below, every image is every other's neighbour
_COMPONENTS = 50  # that t-SNE is given: the rest is mostly noise, and costs time (its authors' advice)
_PERPLEXITY = 30.0  # neighbours that count, where there are images enough
_REMEDY = "pip install 'vitreous[demo]', or choose the projection pca"


@dataclass(frozen=True, eq=False)
class DataMap:
    where: str
    features: Features
    thumbnails: NDArray[np.uint8]  # (n, side, side, 3)
    points: NDArray[np.float64]  # (n, 2)
    method: str


def project_features(features: ArrayLike, method: str = "auto") -> tuple[NDArray[np.float64], str]:
    """Points (n, 2) of features (n, D), and the method that was used: `tsne` or `pca`.

    Equal features give equal points. `auto` is t-SNE where scikit-learn is installed and there are at least 30 images.
    """
    values = check_finite(features, "features", ("images", "dimensions"))
    count = len(values)
    if method == "tsne" and count < _FEWEST:
        raise VitreousError(f"the projection tsne needs at least {_FEWEST} images, not {count}; choose pca")
    wanted = method == "tsne" or (method == "auto" and count >= ENOUGH)
    manifold = _manifold(required=method == "tsne") if wanted else None
    components = principal_components(values, _COMPONENTS if manifold else 2)
    if manifold is None or not components.any():  # images that are all alike have no neighbourhoods
        return components, "pca"
    return _tsne(manifold, components), "tsne"


def principal_components(values: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Scores (n, k), the strongest first; k is at least 2, and a direction in which nothing varies has zeros.

    Signs are free in principle. Here the largest weight of each component is positive, whatever the order of the images.
    """
    centred = values - values.mean(axis=0)
    scale = np.abs(centred).max()
    _, strengths, directions = np.linalg.svd(centred / (scale or 1.0), full_matrices=False)
    # What is left of a mean after it was taken away is rounding, and must not be drawn as if it were structure.
    rounding = np.finfo(np.float64).eps * max(values.shape) * max(1.0, np.abs(values).max() / (scale or 1.0))
    kept = directions[: min(most, max(0, int((strengths > rounding * max(1.0, strengths[0])).sum())))]
    largest = np.abs(kept).argmax(axis=1)
    signs = np.where(kept[np.arange(len(kept)), largest] < 0, -1.0, 1.0)
    scores = centred @ (kept * signs[:, None]).T
    return np.pad(scores, ((0, 0), (0, max(0, 2 - len(kept)))))


def _manifold(required: bool) -> Any:
    """scikit-learn's module, or None."""
    try:
        return importlib.import_module("sklearn.manifold")
    except ImportError as error:
        if required:
            raise VitreousError(f"the projection tsne comes with scikit-learn, which is not installed: {_REMEDY}") from error
        return None


def _tsne(manifold: Any, components: NDArray[np.float64]) -> NDArray[np.float64]:
    from threadpoolctl import threadpool_limits

    # The start that scikit-learn calls `pca`, made here because its own fails on fewer than two dimensions.
    components = components / components[:, 0].std()  # only ratios of distances count, and 32 bits must hold them
    start = components[:, :2] * 1e-4
    tsne = manifold.TSNE(
        perplexity=min(_PERPLEXITY, max(1.0, (len(components) - 1) / 3)), init=start.astype(np.float32), random_state=0
    )
    # With several threads the order of sums is open, and small differences grow: maps would not be the same twice.
    with threadpool_limits(limits=1):
        points = np.asarray(tsne.fit_transform(components.astype(np.float32)), np.float64)
    return points - points.mean(axis=0)
