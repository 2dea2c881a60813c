"""Build a model from a name or a config, with or without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vitreous.core.errors import VitreousError, one_line
from vitreous.models.axial_resnet import AxialResNet
from vitreous.models.config import AxialResNetConfig, ModelConfig, ResNetConfig, Size
from vitreous.models.names import parse_name
from vitreous.models.resnet import ResNet
from vitreous.models.vit import ViT

Model: TypeAlias = ViT | ResNet


def create(name: str, *, classes: int = 1000, image_size: int | Size = 224, **overrides: Any) -> Model:
    """A freshly initialised model: images (B, C, H, W) in [-1, 1] to logits (B, classes).

    `overrides` are fields of the config: width, depth, heads, mlp, patch, channels, pool, representation, positions ...

    >>> model = create("ViT-B/16", classes=10, image_size=(224, 320), pool="gap")
    """
    config = parse_name(name, classes=classes, image_size=image_size, **overrides)
    with torch.inference_mode(False):  # tensors made in inference mode could never be trained
        # `ViT(config)` would do, but torch's layers draw weights of their own first: half of the time, wasted.
        model = allocate_parameters(build_on_meta(config))
        model.initialise()
    return model


def build_on_meta(config: ModelConfig) -> Model:
    """The modules of a model with shapes but without memory, on the meta device."""
    try:
        with torch.device("meta"):
            if isinstance(config, AxialResNetConfig):
                return AxialResNet(config)
            return ResNet(config) if isinstance(config, ResNetConfig) else ViT(config)
    except (RuntimeError, ValueError, OverflowError, MemoryError) as error:  # a config whose sizes torch cannot count
        raise VitreousError(f"{config.name}: such a model cannot be built ({one_line(error, 100)})") from error


def allocate_parameters(model: Model) -> Model:
    """The same with memory for its parameters, contents undefined; fixed tables have theirs already."""
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False):
            setattr(module, key, nn.Parameter(torch.empty(parameter.shape, device="cpu")))
    return model


def build_with_tensors(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Model:
    """A model that takes the given tensors as its weights, without copying them. Names and shapes must fit exactly."""
    with torch.inference_mode(False):
        model = build_on_meta(config)
        model.load_state_dict(tensors, strict=True, assign=True)
        return model.requires_grad_(True)
