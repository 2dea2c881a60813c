"""LoRA [Hu et al. 2021]: frozen matrices, each with a learned product of low rank beside it.

    y = W x + b + s B A x      A: (r, in), drawn at random; B: (out, r), zeros; r the rank, s the scale (alpha / r elsewhere)

A layer keeps its class, its name and its weight; the factors are a submodule `lora`, which a forward hook adds. So the model's
file knows nothing of this. Weights that do not learn need no gradient, which saves about a third of a step's work.

`merged` makes an ordinary model of it for as long as weights are evaluated or written: W + s B A in float32, no factors.
What leaves a run is what was validated, and whoever loads it needs no LoRA.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.core.errors import VitreousError
from vitreous.models.build import Model
from vitreous.models.vit import ViT

_LAYERS = ("attention.qkv", "mlp.up", "mlp.down")  # of each block


class LowRank(nn.Module):
    """s B A x."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        (out, width), device = layer.weight.shape, layer.weight.device
        self.a = nn.Parameter(torch.empty(rank, width, device=device))
        self.b = nn.Parameter(torch.zeros(out, rank, device=device))
        self.scale = scale
        nn.init.uniform_(self.a, -1 / math.sqrt(width), 1 / math.sqrt(width))  # as torch draws an ordinary layer

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.a), self.b) * self.scale


def add_lora(model: Model, rank: int, scale: float) -> None:
    """Factors beside the matrices of attention and MLP, by torch's global generator. The outputs are as before."""
    if not isinstance(model, ViT):
        raise VitreousError(f"--train lora is for models with attention; {model.config.name} has none: use --train all or head")
    for name, layer in list(model.blocks.named_modules()):
        if name.endswith(_LAYERS):
            assert isinstance(layer, nn.Linear)
            layer.lora = LowRank(layer, rank, scale)
            layer.register_forward_hook(_add_product)


def _add_product(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    factors = layer._modules.get("lora")
    return output if factors is None else output + factors(inputs[0])


def is_factor(name: str) -> bool:
    """Of a parameter."""
    return name.endswith((".lora.a", ".lora.b"))


@contextlib.contextmanager
def merged(module: nn.Module) -> Iterator[None]:
    """Inside, an ordinary model with merged weights; afterwards the frozen weights and the factors again, to the bit."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear) and "lora" in layer._modules]
    frozen = [layer.weight.detach().clone() for layer in layers]
    factors = [layer._modules.pop("lora") for layer in layers]
    try:
        with torch.no_grad():
            for layer, own in zip(layers, factors, strict=True):
                assert isinstance(own, LowRank)
                layer.weight.addmm_(own.b, own.a, alpha=own.scale)
        yield
    finally:
        with torch.no_grad():
            for layer, weight, own in zip(layers, frozen, factors, strict=True):
                layer.weight.copy_(weight)
                layer._modules["lora"] = own
