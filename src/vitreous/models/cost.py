"""The cost of a model without building it: parameters, multiply-adds and activation memory.

The model runs once on fake tensors, which have shapes but no data. Multiply-adds are counted by torch's own
flop counter, so they do not repeat our formulas; activation memory is what autograd keeps for the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from vitreous.models.build import Model, allocate_parameters, build_on_meta
from vitreous.models.config import ModelConfig, ResNetConfig, Size
from vitreous.models.names import parse_name


@dataclass(frozen=True)
class Cost:
    """Per image, in float32."""

    parameters: int
    macs: int  # multiply-adds of one forward pass, attention's products included
    activation_bytes: int  # kept for the backward pass by a training step, parameters not counted
    tokens: int  # length of the sequence; 0 for a ResNet

    def training_flops(self, images: int) -> int:
        """Floating-point operations to train on so many images: a backward pass costs two forward, a multiply-add is two."""
        return 6 * self.macs * images


def _attention_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """q k^T and A v. The counter of torch 2.13 knows the fused attention of GPUs but not that of CPUs."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[-2] * (width + value[-1])


_UNCOUNTED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


def cost(name: str, image_size: int | Size = 224, *, classes: int = 1000, **overrides: Any) -> Cost:
    """The cost of a model by name.

    >>> cost("ViT-B/16", image_size=224).parameters
    86567656
    """
    return compute_cost(parse_name(name, image_size=image_size, classes=classes, **overrides))


@cache
def compute_cost(config: ModelConfig) -> Cost:
    model = build_on_meta(config).train()
    # Whatever mode the caller is in: what autograd would keep is the question.
    with torch.inference_mode(False), torch.enable_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        allocate_parameters(model)  # fake: shapes and a device, no data
        parameters = sum(p.numel() for p in model.parameters())
        # Not one image: an axis of length 1 makes views of what are copies otherwise.
        macs, kept = zip(*(_measure_pass(model, images) for images in (2, 3)), strict=True)
    tokens = 0 if isinstance(config, ResNetConfig) else config.tokens
    # What a third image adds; standardised kernels, for one, are kept once however many images there are.
    # One image costs also what is computed once for all, such as the query of attention pooling.
    return Cost(parameters, 2 * macs[0] - macs[1], kept[1] - kept[0], tokens)


def _measure_pass(model: Model, images: int) -> tuple[int, int]:
    """Multiply-adds of a forward pass, and the bytes that autograd keeps after it."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    batch = torch.empty(images, model.config.channels, *model.config.image_size)
    with FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as counter, saved_tensors_hooks(keep, lambda t: t):
        model(batch)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept_bytes = sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in weights)
    return counter.get_total_flops() // 2, kept_bytes
