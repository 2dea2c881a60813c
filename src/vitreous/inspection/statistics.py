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
    """Which part of all patches are outliers in token norm after the last block (see `tokens.outliers`)."""
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
    rows: list[tuple[NDArray[np.floating] | NDArray[np.bool_], ...]] = []
    with eval_mode(subject) as model:
        vit = require_attention(model)
        prefix, parameter = vit.prefix_tokens, next(vit.parameters())
        for batch in batches:
            images = batch.to(parameter)
            heads = measure_heads(vit, grid_of(vit, images), measure_distance, measure_entropy)
            with heads as measured, track_tokens(vit) as found:
                vit.tokens(images)
            norms = by_image(found.norms)  # (B, depth + 1, N)
            lengths = norms[:, :, prefix:].swapaxes(1, 2).reshape(-1, norms.shape[1]).astype(np.float32)
            outlying = outliers(norms.swapaxes(0, 1), prefix).ravel()
            columns = map(by_image, (*measured, found.similarity, found.change))
            rows.append((*columns, norms[:, :, :prefix], lengths, outlying))
    if not rows:
        raise VitreousError("no images to look through; give at least one")
    distance, entropy, similarity, change, leading, lengths, outlying = map(np.concatenate, zip(*rows, strict=True))
    count = len(distance)
    error = distance.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(distance.shape[1:], np.nan)
    return Statistics(
        images=count,
        distance=distance.mean(axis=0),
        distance_error=error,
        entropy=entropy.mean(axis=0),
        norms_quantiles=norm_quantiles(lengths.T[:, None], prefix=0),
        leading_norms=leading.mean(axis=0),
        outlier_share=float(outlying.mean()),
        similarity=similarity.mean(axis=0),
        change=change.mean(axis=0),
    )
