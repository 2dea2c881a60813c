"""The entropy of attention: over how many tokens a head spreads it.

A query that looks at one token alone has 0 bits; one that looks at all N alike has log2(N). 2 to the entropy is a number of
tokens. Attention that has collapsed, to one token or to all of them, shows here before it shows in the accuracy.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.inference.batches import Images
from vitreous.inspection.eval_mode import Subject
from vitreous.inspection.head_view import mean_by_head
from vitreous.models.config import Size
from vitreous.models.vit import ViT


def attention_entropy(subject: Subject, images: Images, batch_size: int = 8) -> NDArray[np.float64]:
    """Mean entropy over queries (every token is one, the leading ones too) and images, in bits, (layers, heads)."""
    return mean_by_head(subject, images, batch_size, measure_entropy)


def measure_entropy(vit: ViT, grid: Size, attention_BHNN: Tensor) -> Tensor:
    """The entropy of one layer, (B, H): the same for every model and grid."""
    return compute_entropy(attention_BHNN)


def compute_entropy(attention_BHNN: Tensor) -> Tensor:
    """Mean entropy of the rows of each image and head, in bits, (B, H); 0 log 0 is 0."""
    # Head by head: no second copy of the layer's attention.
    heads = (head_BNN.float() for head_BNN in attention_BHNN.unbind(1))
    return torch.stack([-torch.xlogy(p_BNN, p_BNN).sum(dim=2).mean(dim=1) / math.log(2) for p_BNN in heads], dim=1)
