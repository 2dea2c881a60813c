"""From a config to a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vitreous.models.config import ModelConfig, ResNetConfig, Size
from vitreous.models.names import parse
from vitreous.models.resnet import ResNet
from vitreous.models.vit import ViT

Model: TypeAlias = ViT | ResNet


def create(name: str, *, classes: int = 1000, image_size: int | Size = 224, **overrides: Any) -> Model:
    """A freshly initialised model: images (B, C, H, W) in [-1, 1] to logits (B, classes).

    `overrides` are fields of the config: width, depth, heads, mlp, patch, channels, pool, representation, positions ...

    >>> model = create("ViT-B/16", classes=10, image_size=(224, 320), pool="gap")
    """
    model = layout(parse(name, classes=classes, image_size=image_size, **overrides))
    for module in model.modules():  # real memory for parameters; fixed tables are real already
        for key, parameter in module.named_parameters(recurse=False):
            setattr(module, key, nn.Parameter(torch.empty_like(parameter, device="cpu")))
    model.initialise()
    return model


def layout(config: ModelConfig) -> Model:
    """The modules of a model with shapes but without memory, on the meta device."""
    with torch.device("meta"):
        return ResNet(config) if isinstance(config, ResNetConfig) else ViT(config)


def assemble(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Model:
    """A model that takes the given tensors as its weights, without copying them. Names and shapes must fit exactly."""
    model = layout(config)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.requires_grad_(True)
