"""What patches have become at the end: how similar their features are, and their principal components as colours.

Features are those after the final norm, as `vitreous embed --tokens` writes them. Two patches with similar features are the
same thing to the model, wherever they lie: parts of one object, or of two of a kind. The first three principal components
show that at a glance, as red, green and blue (DINOv2, Oquab and others, 2023, figure 1). They are of all patches of all images
of one call, so the same colour means the same thing in each of these images.

Shapes: B images, D width.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from vitreous.inference.batches import Images
from vitreous.inference.outputs import token_features
from vitreous.inspection.checked_arrays import check_finite
from vitreous.inspection.data_map import principal_components
from vitreous.inspection.eval_mode import Subject, eval_mode, prepared_batches
from vitreous.inspection.head_view import grid_of
from vitreous.models.attention_maps import require_attention

COMPONENTS = 3  # red, green, blue
_ENDS = 0.01, 0.99  # quantiles that become black and full: a few outlier tokens would leave all others one colour
_SHORTEST = 1e-12  # of a vector that has a direction

Array = NDArray[np.float32]


def patch_features(subject: Subject, images: Images, batch_size: int = 8) -> Array:
    """Features of every patch after the final norm, (B, rows, columns, D), of images of any kind."""
    with eval_mode(subject) as model:
        found = [compute_patch_features(model, batch).cpu().numpy() for batch in prepared_batches(subject, images, batch_size)]
    return np.concatenate(found)


@torch.no_grad()
def compute_patch_features(model: nn.Module, images: Tensor) -> Tensor:
    """The same, (B, rows, columns, D), of preprocessed images (B, C, H, W)."""
    vit = require_attention(model)
    return token_features(vit, images, "patches").float().unflatten(1, grid_of(vit, images))


def patch_similarity(subject: Subject, images: Images, batch_size: int = 8) -> Array:
    """Cosine similarity between any two patches of an image, (B, rows, columns, rows, columns).

    >>> patch_similarity(load("runs/pets"), "cat.jpg")[0, 3, 5]  # how similar each patch is to the one in row 3, column 5
    """
    features = patch_features(subject, images, batch_size)
    return np.stack([compute_patch_similarity(own) for own in features])


def compute_patch_similarity(features: ArrayLike) -> Array:
    """(rows, columns, rows, columns) from the patch features of one image, (rows, columns, D)."""
    values = check_finite(features, "patch features", ("rows", "columns", "width"))
    rows, columns, width = values.shape
    return cosine_similarity(values.reshape(-1, width)).reshape(rows, columns, rows, columns)


def cosine_similarity(features_ND: NDArray[np.floating]) -> Array:
    """Of any two rows, (N, N); a row of zeros has nothing in common with any."""
    lengths = np.maximum(np.linalg.norm(features_ND, axis=1, keepdims=True), _SHORTEST)
    unit = (features_ND / lengths).astype(np.float32)
    # Rounding must not make a patch more than equal to itself.
    return np.clip(unit @ unit.T, -1, 1)


def patch_components(subject: Subject, images: Images, batch_size: int = 8) -> Array:
    """The first three principal components of patch features, over all patches of all images: (B, rows, columns, 3).

    >>> component_colours(patch_components(load("runs/pets"), paths))
    """
    return compute_patch_components(patch_features(subject, images, batch_size))[0]


def compute_patch_components(features: ArrayLike) -> tuple[Array, float]:
    """Components (B, rows, columns, 3) of patch features (B, rows, columns, D), and their share of all variance.

    A component has no sign of its own; here its largest weight is positive. Where less than three vary, the rest is 0.
    """
    values = check_finite(features, "patch features", ("images", "rows", "columns", "width"))
    flat = values.reshape(-1, values.shape[-1])
    scores = principal_components(flat, COMPONENTS)
    scores = np.pad(scores, ((0, 0), (0, COMPONENTS - scores.shape[1])))
    whole = flat.var(axis=0).sum()
    share = float(scores.var(axis=0).sum() / whole) if whole > 0 else 0.0
    return scores.reshape(*values.shape[:3], COMPONENTS).astype(np.float32), share


def component_colours(components: ArrayLike) -> NDArray[np.uint8]:
    """Components (B, rows, columns, 3) as colours; each from its lowest to its highest value over all images of the call.

    The ends are the first and the last hundredth, beyond which colours are full. What does not vary is middle grey.
    """
    values = check_finite(components, "patch components", ("images", "rows", "columns", "components"))
    low, high = np.quantile(values.reshape(-1, values.shape[-1]), _ENDS, axis=0)
    span = high - low
    share = np.where(span > 0, (values - low) / np.where(span > 0, span, 1), 0.5)
    return np.rint(255 * share.clip(0, 1)).astype(np.uint8)


def pick_patches(similarity: NDArray[np.floating], first: tuple[int, int], count: int = 3) -> list[tuple[int, int]]:
    """Places that show different things: `first`, then each time the patch least similar to all before it."""
    columns = similarity.shape[1]
    flat = similarity.reshape(similarity.shape[0] * columns, -1)
    found = [first[0] * columns + first[1]]
    while len(found) < min(count, len(flat)):
        nearest = flat[found].max(axis=0)
        nearest[found] = np.inf
        found.append(int(nearest.argmin()))
    return [divmod(place, columns) for place in found]
