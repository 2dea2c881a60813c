"""Weight initialisation, exactly as the authors' flax code does it.

| what | how |
| --- | --- |
| patch embedding, representation, convolutions | lecun normal: truncated at two deviations, variance 1 / fan-in |
| q, k, v, out, MLP kernels | Xavier uniform; q, k and v are three matrices, though they are stored as one |
| MLP biases | normal, 1e-6 |
| class token, head kernel | zero; so a fresh class token carries no image of its own and a fresh head says nothing |
| position tables | normal, 0.02 ("from BERT") |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitreous.models.layers import MLP, LayerScale
from vitreous.models.pooling import AttentionPool
from vitreous.models.positions import FactorisedPositions, LearnedPositions, RelativePositions

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet
    from vitreous.models.vit import ViT

# Cutting a normal at two deviations leaves this much of its deviation; dividing by it restores variance 1 / fan-in.
_TRUNCATED_DEVIATION = 0.87962566103423978


def lecun_normal_(weight: Tensor) -> None:
    """By inverting the distribution function, as jax does; torch's own rejects and redraws, which needs real data."""
    std = 1.0 / math.sqrt(weight[0].numel()) / _TRUNCATED_DEVIATION
    edge = math.erf(2.0 / math.sqrt(2.0))
    weight.uniform_(-edge, edge).erfinv_().mul_(std * math.sqrt(2.0)).clamp_(-2 * std, 2 * std)


def xavier_uniform_(weight: Tensor, matrices: int = 1) -> None:
    """`matrices` of equal size may be stacked in one weight; each has its own fan-out."""
    bound = math.sqrt(6.0 / (weight.shape[1] + weight.shape[0] // matrices))
    nn.init.uniform_(weight, -bound, bound)


def set_constants(model: nn.Module) -> None:
    """What is not drawn: norms are the identity and biases zero, unless drawn later."""
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            module.reset_parameters()
        elif isinstance(module, (nn.Linear, nn.Conv2d)) and module.bias is not None:
            nn.init.zeros_(module.bias)
        elif isinstance(module, LayerScale):
            nn.init.constant_(module.gamma, module.initial)


@torch.no_grad()
def initialise_vit(model: ViT) -> None:
    from vitreous.models.vit import Attention

    set_constants(model)
    for module in model.modules():
        if isinstance(module, Attention):
            xavier_uniform_(module.qkv.weight, matrices=3)
            xavier_uniform_(module.out.weight)
        elif isinstance(module, AttentionPool):
            bound = math.sqrt(6.0 / (2 * module.probe.shape[-1]))
            nn.init.uniform_(module.probe, -bound, bound)
            xavier_uniform_(module.query.weight)
            xavier_uniform_(module.key_value.weight, matrices=2)
            xavier_uniform_(module.out.weight)
        elif isinstance(module, MLP):
            xavier_uniform_(module.up.weight, matrices=2 if module.gated else 1)
            xavier_uniform_(module.down.weight)
            nn.init.normal_(module.up.bias, std=1e-6)
            nn.init.normal_(module.down.bias, std=1e-6)
        elif isinstance(module, (LearnedPositions, RelativePositions)):
            nn.init.normal_(module.table, std=0.02)
        elif isinstance(module, FactorisedPositions):
            nn.init.normal_(module.columns, std=0.02)
            nn.init.normal_(module.rows, std=0.02)
    if model.config.trunk is not None or model.config.stem:
        initialise_convolutions(model.trunk)
    lecun_normal_(model.embedding.weight)
    for token in (model.class_token, model.distillation_token):
        if token is not None:
            nn.init.zeros_(token)
    for token in (model.registers, model.mask_token):  # unpublished; BERT's 0.02 tells several registers apart
        if token is not None:
            nn.init.normal_(token, std=0.02)
    if isinstance(model.representation, nn.Linear):
        lecun_normal_(model.representation.weight)
    for head in (model.head, model.distillation_head):
        if isinstance(head, nn.Linear):
            initialise_head(head, model.config.head_bias)


def initialise_head(head: nn.Linear, bias: float) -> None:
    nn.init.zeros_(head.weight)
    nn.init.constant_(head.bias, bias)


@torch.no_grad()
def initialise_convolutions(model: nn.Module) -> None:
    from vitreous.models.resnet import PostUnit

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            lecun_normal_(module.weight)
        elif isinstance(module, RelativePositions):
            nn.init.normal_(module.table, std=0.02)
    for module in model.modules():
        if isinstance(module, PostUnit):  # so that every fresh unit is the identity
            nn.init.zeros_(module.norm3.weight)


@torch.no_grad()
def initialise_resnet(model: ResNet) -> None:
    set_constants(model)
    initialise_convolutions(model)
    if isinstance(model.head, nn.Linear):
        initialise_head(model.head, model.config.head_bias)
