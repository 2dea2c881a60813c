"""Attention and token statistics over many images, computed in one pass.

The same functions on the same probabilities and tokens as `attention_distance`, `attention_entropy`, `token_norms`,
`token_similarity` and `token_change`, so the numbers are the same. Images of several sizes may come, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.inspection.distance import measure_distance
from vitreous.inspection.entropy import measure_entropy
from vitreous.inspection.eval_mode import Subject, eval_mode
from vitreous.inspection.head_view import by_image, grid_of, measure_heads
from vitreous.inspection.tokens import norm_quantiles, outliers, track_tokens
from vitreous.models.attention_maps import require_attention

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Means are over images. L layers of attention, H heads, `depth` blocks; depth 0 is the embedding."""

    images: int
    distance: Array
    """Attention distance in pixels, (L, H)."""
    distance_error: Array
    """Standard error of that mean, (L, H): how far it may be from the mean over all images. Of one image nobody knows: nan."""
    entropy: Array
    """Entropy of attention in bits, (L, H)."""
    norms_quantiles: Array
    """Lengths of patch tokens, all patches of all images taken together: least, quarter, median, three quarters, greatest;
    (depth + 1, 5)."""
    leading_norms: Array
    """Mean length of each leading token, (depth + 1, prefix)."""
    outlier_share: float
    """Which part of all patches are outliers in length after the last block (see `tokens.outliers`)."""
    similarity: Array
    """Mean cosine similarity between different patches of an image, (depth + 1,)."""
    change: Array
    """Mean cosine similarity between a patch's token after a block and before it, (depth,)."""


@torch.no_grad()
def compute_statistics(subject: Subject, batches: Iterable[Tensor]) -> Statistics:
    """Look through prepared images (B, C, H, W), batch by batch.

    In memory at a time: one layer's attention of one batch. Of every image its numbers are kept, of which the lengths of
    tokens, 4 bytes for each token and depth, are most; quantiles need them all.
    """
    distance: list[Array] = []
    entropy: list[Array] = []
    similarity: list[Array] = []
    change: list[Array] = []
    leading: list[Array] = []
    lengths: list[NDArray[np.float32]] = []
    outlying: list[NDArray[np.bool_]] = []
    with eval_mode(subject) as model:
        vit = require_attention(model)
        prefix, parameter = vit.prefix_tokens, next(vit.parameters())
        for batch in batches:
            if batch.ndim != 4 or not len(batch):
                raise VitreousError(f"a batch has shape {tuple(batch.shape)}; give prepared images (B, C, H, W), one or more")
            images = batch.to(parameter)
            heads = measure_heads(vit, grid_of(vit, images), measure_distance, measure_entropy)
            with heads as (distances_LBH, entropies_LBH), track_tokens(vit) as found:
                vit.tokens(images)
            distance.append(by_image(distances_LBH))
            entropy.append(by_image(entropies_LBH))
            similarity.append(by_image(found.similarity))
            change.append(by_image(found.change))
            norms = by_image(found.norms).swapaxes(0, 1)  # (depth + 1, B, N)
            leading.append(norms[:, :, :prefix].swapaxes(0, 1))
            lengths.append(norms[:, :, prefix:].reshape(len(norms), -1).astype(np.float32))
            outlying.append(outliers(norms, prefix).ravel())
    if not distance:
        raise VitreousError("no images to look through; give at least one")
    count = sum(map(len, distance))
    every = np.concatenate(distance)
    error = every.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(every.shape[1:], np.nan)
    return Statistics(
        images=count,
        distance=every.mean(axis=0),
        distance_error=error,
        entropy=_mean(entropy),
        norms_quantiles=norm_quantiles(np.concatenate(lengths, axis=1)[:, None], prefix=0),
        leading_norms=_mean(leading),
        outlier_share=float(np.concatenate(outlying).mean()),
        similarity=_mean(similarity),
        change=_mean(change),
    )


def _mean(parts: list[Array]) -> Array:
    return np.concatenate(parts).mean(axis=0)
