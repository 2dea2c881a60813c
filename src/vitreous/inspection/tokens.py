"""Token statistics layer by layer: norm, similarity, and change from block to block.

Long tokens are worth a look because large models turn a few patches of little content into stores of something global: their
length is many times that of their neighbours, and they no longer say anything of their place ("Vision Transformers Need
Registers", Darcet and others, 2023). Tokens that all become alike have lost their places too, in another way.

Depth 0 is z_0 of equation (1), after the positions; depth l is what block l gives, before the final norm. An axial block is
one block.

Shapes: B images, N tokens, the leading ones first, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitreous.inference.batches import Images
from vitreous.inspection.eval_mode import Subject, eval_mode, prepared_batches
from vitreous.inspection.head_view import by_image
from vitreous.models.attention_maps import require_attention
from vitreous.models.vit import ViT

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
TIMES_THE_MEDIAN = 2.0
DEVIATIONS = 6.0
_DEVIATION_OF_NORMAL = 1.4826  # deviation of a normal distribution, in its median absolute deviations


@dataclass(frozen=True)
class TokenStatistics:
    """What one pass of a model tells of its tokens, depth by depth."""

    norms: list[Tensor] = field(default_factory=list)  # (B, N) each
    similarity: list[Tensor] = field(default_factory=list)  # (B,) each
    change: list[Tensor] = field(default_factory=list)  # (B,) each, one fewer


@contextmanager
def track_tokens(vit: ViT) -> Iterator[TokenStatistics]:
    """While this is open, one pass of the model fills what is given. Of the tokens, one depth's directions are kept."""
    found = TokenStatistics()
    before_BND: list[Tensor] = []

    def record(z_BND: Tensor) -> None:
        z_BND = z_BND.float()
        patches_BND = F.normalize(z_BND[:, vit.prefix_tokens :], dim=-1)
        found.norms.append(z_BND.norm(dim=-1))
        found.similarity.append(mean_similarity(patches_BND))
        if before_BND:
            found.change.append((before_BND.pop() * patches_BND).sum(dim=-1).mean(dim=-1))
        before_BND.append(patches_BND)

    with ExitStack() as hooks:
        hooks.enter_context(vit.blocks[0].register_forward_pre_hook(lambda block, inputs: record(inputs[0])))
        for block in vit.blocks:
            hooks.enter_context(block.register_forward_hook(lambda block, inputs, output: record(output)))
        yield found


def mean_similarity(unit_BND: Tensor) -> Tensor:
    """Mean cosine similarity between different tokens of each image, (B,), from tokens of length 1.

    The squared length of their sum holds the product of every two, so no N x N matrix is needed. One token alone has no
    other to be like: nan.
    """
    n = unit_BND.shape[1]
    if n < 2:
        return unit_BND.new_full((len(unit_BND),), float("nan"))
    return (unit_BND.sum(dim=1).square().sum(dim=-1) - unit_BND.square().sum(dim=(1, 2))) / (n * (n - 1))


def token_norms(subject: Subject, images: Images, batch_size: int = 8) -> NDArray[np.float64]:
    """L2 norm of every token, after the embedding and after each block, (blocks + 1, images, N)."""
    return np.concatenate([by_image(found.norms) for found in _passes(subject, images, batch_size)]).swapaxes(0, 1)


def token_similarity(subject: Subject, images: Images, batch_size: int = 8) -> NDArray[np.float64]:
    """Mean cosine similarity between different patches of an image, after the embedding and after each block, (blocks + 1,)."""
    return np.concatenate([by_image(found.similarity) for found in _passes(subject, images, batch_size)]).mean(axis=0)


def token_change(subject: Subject, images: Images, batch_size: int = 8) -> NDArray[np.float64]:
    """Mean cosine similarity between a patch's token after a block and before it, (blocks,): 1 where no direction changes.

    "Before" is what the block before it gave; positions that are added between (appendix D.4) count as part of the change.
    """
    return np.concatenate([by_image(found.change) for found in _passes(subject, images, batch_size)]).mean(axis=0)


def norm_quantiles(norms: NDArray[np.floating], prefix: int) -> NDArray[np.float64]:
    """Of the patches of all images together, from what `token_norms` gives: the shortest length, the quarters and the
    longest, (blocks + 1, 5)."""
    return np.quantile(norms[:, :, prefix:].reshape(len(norms), -1), QUANTILES, axis=1).T.astype(np.float64)


def outliers(norms: NDArray[np.floating], prefix: int) -> NDArray[np.bool_]:
    """Which patches are outliers in token norm after the last block, (images, patches), from what `token_norms` gives.

    An outlier is at least twice as long as the median patch of its own image, and lies 6 deviations above it (estimated
    from the median absolute deviation, which outliers do not move). The paper on registers draws a line at a fixed length
    for each model, which does not carry over to another model; it finds outliers around ten times as long as the others, far
    beyond both of these lines. The first keeps lengths that differ by little from being called outliers, the second lengths
    that vary widely by nature. An image's outliers do not depend on what other images there are.
    """
    last = np.asarray(norms[-1][:, prefix:], dtype=np.float64)
    median = np.median(last, axis=1, keepdims=True)
    deviation = _DEVIATION_OF_NORMAL * np.median(np.abs(last - median), axis=1, keepdims=True)
    return (last >= TIMES_THE_MEDIAN * median) & (last > median + DEVIATIONS * deviation)


@torch.no_grad()
def _passes(subject: Subject, images: Images, batch_size: int) -> list[TokenStatistics]:
    done: list[TokenStatistics] = []
    with eval_mode(subject) as model:
        vit = require_attention(model)
        for batch in prepared_batches(subject, images, batch_size):
            with track_tokens(vit) as found:
                vit.tokens(batch)
            done.append(found)
    return done
