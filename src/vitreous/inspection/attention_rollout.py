"""Attention rollout: which parts of an image all layers together attend to (figure 6).

Attention rollout (Abnar and Zuidema, 2020), as the paper's figures 6 and 14 use it (appendix D.8). A layer passes on what its
attention mixes and, beside it, what its tokens were before; with A_l, the attention of layer l averaged over heads,

    M_l = rows of (A_l + I), each divided by its sum          R = M_L ... M_2 M_1

and R_ij is how much of input token j has come to token i. What enters the head says which rows of R count: the class token's;
the mean of the patches' where patches are averaged; those that the probe of an attention pooling looks at. Rollout tells how
tokens were mixed, not whether what was mixed spoke for the class or against it.

A ResNet mixes nothing by attention. Its logit is a mean over places of the feature map, so each place's part in the predicted
class is exact: the class activation (Zhou and others, 2016).

Shapes: B images, N tokens, the leading ones first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.core.errors import VitreousError
from vitreous.inference.batches import Images
from vitreous.inspection.eval_mode import Subject, eval_mode, prepared_batches
from vitreous.models.attention_maps import require_attention, watch_attention
from vitreous.models.pooling import AttentionPool
from vitreous.models.resnet import ResNet
from vitreous.models.vit import ViT


def add_residual(attention_BNN: Tensor) -> Tensor:
    """M of one layer: the skip connection counts as much as the attention."""
    mixed = attention_BNN + torch.eye(attention_BNN.shape[-1], dtype=attention_BNN.dtype, device=attention_BNN.device)
    return mixed / mixed.sum(dim=-1, keepdim=True)


def add_layer(joint_BNN: Tensor | None, attention_BHNN: Tensor) -> Tensor:
    """R, (B, N, N), after one layer more; before the first there is none."""
    layer = add_residual(attention_BHNN.float().mean(dim=1))
    return layer if joint_BNN is None else layer @ joint_BNN


def rollout(subject: Subject, images: Images, batch_size: int = 8) -> NDArray[np.float32]:
    """Attention rollout of images of any kind, (B, rows, columns): see `compute_rollout`.

    >>> rollout(load("runs/pets"), "cat.jpg")[0]
    """
    with eval_mode(subject) as model:
        found = [compute_rollout(model, batch).cpu().numpy() for batch in prepared_batches(subject, images, batch_size)]
    return np.concatenate(found)


@torch.no_grad()
def compute_rollout(model: nn.Module, images: Tensor) -> Tensor:
    """How much of each patch has come to what enters the head, (B, rows, columns), of preprocessed images (B, C, H, W).

    Values are shares: with the leading tokens', which are left out here, they sum to 1. The model runs once, on fused
    attention; beside it, one layer's attention and R are in memory.
    """
    found: dict[str, Tensor] = {}

    def roll(layer: int, attention_BHNN: Tensor) -> None:
        found["joint"] = add_layer(found.get("joint"), attention_BHNN)

    def probe(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(module, AttentionPool)
        found["probe"] = probe_attention(module, inputs[0]).float().mean(dim=1)

    vit = require_attention(model)
    grid = vit.config.grid_of((images.shape[-2], images.shape[-1]))
    handle = vit.pool.register_forward_pre_hook(probe) if vit.pool is not None else None
    try:
        with watch_attention(vit, grid, roll):
            vit.features(images)
    finally:
        if handle is not None:
            handle.remove()
    rows_BN = select_head_rows(vit, found["joint"], found.get("probe"))
    return rows_BN[:, vit.prefix_tokens :].unflatten(1, grid)


@torch.no_grad()
def class_activation(model: ResNet, images: Tensor, classes: Tensor | None = None) -> Tensor:
    """What each place of the last feature map adds to the logit of a class, (B, rows, columns): their mean is that logit
    without its bias. `classes` (B,) are the predicted ones unless given."""
    if not isinstance(model.head, nn.Linear):
        raise VitreousError(f"{model.config.name} has no head, so there is no class to map; load it with classes=...")
    map_BCG = model.trunk(images)
    if classes is None:
        classes = model.head(map_BCG.mean(dim=(2, 3))).argmax(dim=1)
    return torch.einsum("bchw,bc->bhw", map_BCG, model.head.weight[classes]).float()


def attention_map(model: nn.Module, images: Tensor, classes: Tensor | None = None) -> Tensor:
    """For people, of any model: (B, rows, columns), in each image from 0 to 1, as in the paper's figure 6.

    `classes` (B,) matter to ResNets alone, which look for something: for the predicted ones unless given.
    """
    # What spoke against the class is no reason for it.
    found = (
        class_activation(model, images, classes).clamp(min=0) if isinstance(model, ResNet) else compute_rollout(model, images)
    )
    lowest, highest = found.amin(dim=(1, 2), keepdim=True), found.amax(dim=(1, 2), keepdim=True)
    return (found - lowest) / torch.where(highest > lowest, highest - lowest, 1)  # all alike: it looked nowhere in particular


def probe_attention(pool: AttentionPool, z_BND: Tensor) -> Tensor:
    """Where the probe of an attention pooling looks, (B, heads, N)."""
    b, n, d = z_BND.shape
    width = d // pool.heads
    q_HK = pool.query(pool.probe).view(pool.heads, width)
    k_BNHK = pool.key_value(z_BND)[..., :d].view(b, n, pool.heads, width)
    return (torch.einsum("hk,bnhk->bhn", q_HK, k_BNHK) / width**0.5).softmax(dim=-1)


def select_head_rows(model: ViT, joint_BNN: Tensor, probe_BN: Tensor | None) -> Tensor:
    """The rows of R that enter the head, as one, (B, N)."""
    if probe_BN is not None:
        return (probe_BN[:, None] @ joint_BNN)[:, 0]
    token, mean = joint_BNN[:, 0], joint_BNN[:, model.prefix_tokens :].mean(dim=1)
    if model.config.pool == "token":
        heads = 2 if model.distillation_head is not None else 1  # DeiT reads two tokens, alike
        return joint_BNN[:, :heads].mean(dim=1)
    return (token + mean) / 2 if model.config.pool == "token+mean" else mean
