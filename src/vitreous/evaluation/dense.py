"""Masks from patch features in closed form: ridge regression on a few annotated images.

    fit = fit_dense(features, labels, classes=2)           # (n, R, L, D) and (n, R, L)
    predict_mask(fit.scores(features[0]), (height, width))

A patch counts for the class of most of its pixels; where most are ignored, it takes no part. Patches of an image are alike, so
that leaving out single ones would choose too small an l2: whole images are left out, in at most `FOLDS` parts. A mask is
predicted from the scores of all patches, interpolated (bilinear) to its own size, and evaluated there.

Shapes: n images, R rows and L columns of patches, D width, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from vitreous.evaluation.closed_form_head import linear_layer
from vitreous.evaluation.fewshot import FIXED
from vitreous.evaluation.ridge import L2S, Ridge

IGNORED = -1  # of a pixel or a patch that takes no part
FOLDS = 5
FEWEST = 3  # images: of fewer, one or two patches decide, and a fixed l2 is better
HALF = 0.4999  # of a patch's area counts, at least; a little less, for sums of shares are rounded

Grid = tuple[int, int]


@dataclass(frozen=True, eq=False)
class DenseFit:
    weight: NDArray[np.float32]  # (D, C)
    bias: NDArray[np.float32]  # (C,)
    l2: float

    def scores(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """(rows, columns, C) of patch features (rows, columns, D): about 1 where a patch is of the class, -1 elsewhere."""
        return features @ self.weight + self.bias


def label_pixels(values: NDArray[np.uint8], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Class indices of a mask's pixels; `IGNORED` for values that are no class."""
    table = np.full(256, IGNORED, np.int64)
    table[classes] = np.arange(len(classes))
    return table[values]


def label_patches(pixels: NDArray[np.int64], grid: Grid, classes: int) -> NDArray[np.int64]:
    """The class that most pixels of each patch have, (rows, columns); `IGNORED` where less than half of them count."""
    rows, columns = grid
    shares = np.stack([_shrink(pixels == label, rows, columns) for label in range(classes)])
    return np.where(shares.sum(axis=0) >= HALF, shares.argmax(axis=0), IGNORED)


def _shrink(values: NDArray[np.bool_] | NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.float32]:
    """The mean over the area of each patch, which need not be whole pixels: Pillow's box filter counts those whole."""
    down, across = _overlaps(values.shape[0], rows), _overlaps(values.shape[1], columns)
    return down @ values.astype(np.float32) @ across.T


def _overlaps(pixels: int, parts: int) -> NDArray[np.float32]:
    """Which share of each of so many equal parts each pixel is, (parts, pixels)."""
    edges, places = np.linspace(0, pixels, parts + 1), np.arange(pixels)
    shared = np.minimum(edges[1:, None], places + 1) - np.maximum(edges[:-1, None], places)
    return (shared.clip(min=0) * parts / pixels).astype(np.float32)


def fit_dense(features: NDArray[np.float32], labels: NDArray[np.int64], classes: int, l2: float | None = None) -> DenseFit:
    """Of patch features (n, R, L, D) and their classes (n, R, L); without `l2`, the best for images that are left out."""
    width = features.shape[-1]
    images = np.repeat(np.arange(len(features)), labels[0].size)
    flat, own = features.reshape(-1, width), labels.reshape(-1)
    there = own != IGNORED
    flat, own, images = flat[there], own[there], images[there]
    if l2 is None:
        l2 = choose_by_images(flat, own, images, classes)
    weight, bias = linear_layer(_ridge(flat, own, classes), l2)
    return DenseFit(weight.T.float().numpy(), bias.float().numpy(), l2)


def choose_by_images(
    features: NDArray[np.float32], labels: NDArray[np.int64], images: NDArray[np.int64], classes: int
) -> float:
    """The l2 with the best mean IoU over patches of images that the fit has not seen; of equals the largest."""
    folds = min(FOLDS, int(images.max()) + 1)
    if folds < FEWEST:
        return FIXED
    confusion = np.zeros((len(L2S), classes, classes), np.int64)
    for fold in range(folds):
        held = images % folds == fold
        if len(np.unique(labels[~held])) < 2 or not held.any():
            continue
        named = _ridge(features[~held], labels[~held], classes).classify_for(torch.from_numpy(features[held]), L2S).numpy()
        for place, own in enumerate(named):
            confusion[place] += count_confusion(labels[held], own, classes)
    found = [mean_iou(part) for part in confusion]
    return max(zip(found, L2S, strict=True))[1]


def _ridge(features: NDArray[np.float32], labels: NDArray[np.int64], classes: int) -> Ridge:
    return Ridge(torch.from_numpy(features), [(label,) for label in labels.tolist()], classes)


def predict_mask(scores: NDArray[np.float32], size: Grid) -> NDArray[np.int64]:
    """Scores of patches (rows, columns, C), interpolated to `size`, and the highest taken at each pixel."""
    large = F.interpolate(torch.from_numpy(scores).permute(2, 0, 1)[None], size, mode="bilinear", align_corners=False)
    return large[0].argmax(dim=0).numpy()


def count_confusion(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """How many pixels of each class (rows) were taken for each class (columns)."""
    there = truth != IGNORED
    return np.bincount(truth[there] * classes + predicted[there], minlength=classes**2).reshape(classes, classes)


def iou(confusion: NDArray[np.int64]) -> NDArray[np.float64]:
    """Intersection over union of each class; nan for one that is neither there nor predicted."""
    right = np.diagonal(confusion)
    union = confusion.sum(axis=0) + confusion.sum(axis=1) - right
    return np.where(union > 0, right / np.maximum(union, 1), np.nan)


def mean_iou(confusion: NDArray[np.int64]) -> float:
    found = iou(confusion)
    return float(np.nanmean(found)) if np.isfinite(found).any() else float("nan")


def colour_features(pixels: NDArray[np.uint8], grid: Grid) -> NDArray[np.float32]:
    """What needs no model: mean red, green and blue of each patch and its place, with squares and products, (R, L, 20)."""
    rows, columns = grid
    small = np.stack([_shrink(pixels[..., channel], rows, columns) for channel in range(3)], axis=-1) / 255
    down, across = np.meshgrid((np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns, indexing="ij")
    own = np.concatenate([small, down[..., None], across[..., None]], axis=-1)
    pairs = [own[..., i] * own[..., j] for i in range(own.shape[-1]) for j in range(i + 1)]
    return np.concatenate([own, np.stack(pairs, axis=-1)], axis=-1).astype(np.float32)
