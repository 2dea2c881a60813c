"""One small model of every kind that the project can load, with weights that are no zeros."""

from __future__ import annotations

from typing import Any

import torch

from vitreous.models.build import Model, create
from vitreous.models.config import ResNetConfig

_VIT: dict[str, Any] = dict(name="ViT-Ti/8", image_size=(32, 40), width=24, depth=2, heads=2, mlp=32)
_RESNET: dict[str, Any] = dict(image_size=32, width=32, units=(1, 1, 1, 1))
_TRUNK = ResNetConfig(form="post", width=32, units=(1, 1, 1), classes=0)

FAMILIES: dict[str, dict[str, Any]] = {
    "class token": _VIT,
    "gap": _VIT | dict(pool="gap", class_token=False),
    "map": _VIT | dict(pool="map", class_token=False),
    "token+mean": _VIT | dict(pool="token+mean"),
    "registers, layer scale": _VIT | dict(registers=3, layer_scale=0.1, activation="gelu-erf"),
    "rotary": _VIT | dict(positions="rope", registers=2, key_bias=False),
    "relative": _VIT | dict(positions="relative"),
    "factorised": _VIT | dict(positions="2d"),
    "sines": _VIT | dict(positions="sincos", pool="gap", class_token=False),
    "axial": _VIT | dict(attention="axial", pool="gap", class_token=False),
    "representation": _VIT | dict(representation=12),
    "distilled": _VIT | dict(distillation_token=True, distillation_head=True),
    "gated": _VIT | dict(mlp_form="swiglu"),
    "no head": _VIT | dict(classes=0),
    "hybrid": _VIT | dict(name="R26+ViT-S/32", image_size=64, trunk=_TRUNK),
    "bit": _RESNET | dict(name="R50x1"),
    "axial resnet": _RESNET | dict(name="AxialR50x1"),
}


def build(family: str) -> Model:
    torch.manual_seed(0)
    model = create(**{"classes": 5, **FAMILIES[family]})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 4:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()
