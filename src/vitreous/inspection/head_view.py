"""Attention maps and measures of single heads.

Everything here runs the model once, on fused attention, and sees one layer's probabilities at a time: what is kept of a layer
is copied out of them, never a view, which would keep all of them alive.

Shapes: B images, N tokens, the leading ones first, H heads, L layers of attention (an axial block has two).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.inference.batches import Images
from vitreous.inspection.eval_mode import Subject, eval_mode, prepared_batches
from vitreous.models.attention_maps import require_attention, watch_attention
from vitreous.models.config import Size
from vitreous.models.vit import ViT

HeadMeasure = Callable[[ViT, Size, Tensor], Tensor]
"""From a model, its grid of patches and one layer's attention (B, H, N, N) to one number for each image and head, (B, H)."""


def attention_by_head(subject: Subject, images: Images, batch_size: int = 8) -> NDArray[np.float32]:
    """Where every head of every layer looks in images of any kind, (B, L, H, rows, columns): see `class_token_attention`.

    >>> plot_attention(image, attention_by_head(load("runs/pets"), "cat.jpg")[0])
    """
    with eval_mode(subject) as model:
        found = [class_token_attention(model, batch).cpu().numpy() for batch in prepared_batches(subject, images, batch_size)]
    return np.concatenate(found, axis=1).swapaxes(0, 1)


@torch.no_grad()
def class_token_attention(model: nn.Module, images: Tensor) -> Tensor:
    """How much the class token looks at each patch, in each layer and head, (L, B, H, rows, columns).

    Where the head reads no class token it is the mean over the patches' looks. Columns of leading tokens are dropped and
    nothing is divided by what is left, so a sum below 1 tells how much went to them.
    """
    vit = require_attention(model)
    grid, prefix = grid_of(vit, images), vit.prefix_tokens
    found: list[Tensor] = []

    def look(layer: int, attention_BHNN: Tensor) -> None:
        by_token = vit.config.pool in ("token", "token+mean")
        rows_BHN = attention_BHNN[:, :, 0] if by_token else attention_BHNN[:, :, prefix:].mean(dim=2)
        found.append(rows_BHN[..., prefix:].to(torch.float32, copy=True).unflatten(-1, grid))

    with eval_mode(vit), watch_attention(vit, grid, look):
        vit.tokens(images)
    return torch.stack(found)


@contextmanager
def measure_heads(vit: ViT, grid: Size, *measures: HeadMeasure) -> Iterator[list[list[Tensor]]]:
    """While this is open, a pass of the model fills one list for each measure, with (B, H) for each layer."""
    found: list[list[Tensor]] = [[] for _ in measures]

    def look(layer: int, attention_BHNN: Tensor) -> None:
        for measure, values in zip(measures, found, strict=True):
            values.append(measure(vit, grid, attention_BHNN))

    with watch_attention(vit, grid, look):
        yield found


def by_image(layers_B: list[Tensor]) -> NDArray[np.float64]:
    """What a pass has filled, (B, L, ...): in float64, in which means over many images lose nothing."""
    return torch.stack(layers_B, dim=1).cpu().double().numpy()


@torch.no_grad()
def mean_by_head(subject: Subject, images: Images, batch_size: int, measure: HeadMeasure) -> NDArray[np.float64]:
    """The mean over images of a measure, (L, H)."""
    found: list[NDArray[np.float64]] = []
    with eval_mode(subject) as model:
        vit = require_attention(model)
        for batch in prepared_batches(subject, images, batch_size):
            with measure_heads(vit, grid_of(vit, batch), measure) as (values,):
                vit.tokens(batch)
            found.append(by_image(values))
    return np.concatenate(found).mean(axis=0)


def grid_of(vit: ViT, images: Tensor) -> Size:
    """Patches down and across of prepared images; refuses sizes that the model cannot take."""
    return vit.config.grid_of((images.shape[-2], images.shape[-1]))
