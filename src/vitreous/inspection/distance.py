"""Attention distance in input pixels (figures 7 right and 11 of the paper, appendix D.7).

It is to attention what the receptive field is to convolutions. For the patches i, with d_ij pixels between the places of
i and j,

    distance = mean over i of sum over j of A_ij d_ij

then the mean over images. This is how the authors compute it: rows and columns of leading tokens are dropped and what is left
of a row is not divided by its sum. What a patch gives to the class token or to registers therefore counts as no distance, and
a head that looks only at those has distance 0.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.inference.batches import Images
from vitreous.inspection.eval_mode import Subject
from vitreous.inspection.head_view import mean_by_head
from vitreous.models.config import Size
from vitreous.models.vit import ViT


def attention_distance(subject: Subject, images: Images, batch_size: int = 8) -> NDArray[np.float64]:
    """Mean attention distance over images, in pixels, (layers, heads).

    Beside the model, one layer's attention of one batch is in memory. An axial block counts as two layers.

    >>> attention_distance(load("ViT-B/16@imagenet21k"), paths)[0]  # the first layer: some heads near, some far
    """
    return mean_by_head(subject, images, batch_size, measure_distance)


def measure_distance(vit: ViT, grid: Size, attention_BHNN: Tensor) -> Tensor:
    """The distance of one layer of that model, (B, H)."""
    return compute_distance(attention_BHNN, grid, vit.config.step, vit.prefix_tokens)


def compute_distance(attention_BHNN: Tensor, grid: Size, step: Size, prefix: int) -> Tensor:
    """Mean distance in pixels of each image and head, (B, H), from probabilities whose first `prefix` tokens lead.

    `step` is the pixels from one token to the next, down and across: a hybrid's is the stride of its trunk times its patch.
    """
    apart_NN = pixels_apart(grid, step, attention_BHNN.device)
    # Head by head: the product of all heads at once would be a second copy of the layer's attention.
    return torch.stack(
        [(head_BNN[:, prefix:, prefix:].float() * apart_NN).sum(dim=2).mean(dim=1) for head_BNN in attention_BHNN.unbind(1)],
        dim=1,
    )


def uniform_distance(grid: Size, step: Size, prefix: int) -> float:
    """The distance of uniform attention, in pixels."""
    patches = grid[0] * grid[1]
    return float(pixels_apart(grid, step).double().mean()) * patches / (patches + prefix)


def pixels_apart(grid: Size, step: Size, device: torch.device | None = None) -> Tensor:
    """Euclidean distance between the places of every two patches, in raster order, (patches, patches)."""
    rows, columns = (torch.arange(n, dtype=torch.float32, device=device) * pixels for n, pixels in zip(grid, step, strict=True))
    places = torch.cartesian_prod(rows, columns)
    return (places[:, None] - places[None, :]).square().sum(dim=-1).sqrt()
