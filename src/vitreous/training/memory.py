"""How much memory a training step needs on each device, computed before anything is built.

    memory_per_device(parse("ViT-L/16", image_size=384), micro_batch=8, optimizer="adam", processes=8, shard=8).total

Weights, gradients, optimiser and average are counted. What autograd keeps is found by running the model's modules once on
tensors without data, in the precision asked for, as `vitreous.cost` does; here it is also known which block keeps what.
The loop's habits are assumed: float32 weights with autocast, gradients inside DDP's buckets, FSDP2 block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from vitreous.core.errors import VitreousError
from vitreous.models.build import Model, allocate_parameters, build_on_meta
from vitreous.models.config import ModelConfig
from vitreous.models.vit import ViT
from vitreous.training.objectives.masked_patch import MaskedPatches
from vitreous.training.recipes.recipe import MaskTarget, Optimizer

_FLOAT = 4  # bytes
_OUTSIDE, _ENTERING = -1, -2  # places beside the numbers of blocks
_MOMENTS = {"adam": 2, "sgd": 1}
# For itself an operation needs, at the worst, a tensor as large as the largest that is kept, and a few as large as the
# largest weight: its new gradient before it is added, and where kernels are standardised, the steps of that.
_WORKING, _WORKING_WEIGHTS = 1, 4


@dataclass(frozen=True)
class Memory:
    """Bytes on one device at the worst moment of a step, the beginning of a backward pass."""

    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int  # kept for the backward pass, of one micro-batch
    buffers: int  # copies of weights in bfloat16, blocks put together by FSDP, and what one operation needs for itself

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.average + self.activations + self.buffers


@dataclass(frozen=True)
class _Kept:
    """The bytes that autograd keeps, for each image unless it says otherwise."""

    inside: tuple[int, ...]  # by block
    entering: int  # the blocks, all of them
    outside: int
    largest: int  # of all tensors
    once: int  # however many images there are
    largest_weight: int  # numbers in it
    weights: tuple[int, ...]  # the number of parameters by block; last, of what is outside


def memory_per_device(
    config: ModelConfig,
    *,
    micro_batch: int,
    optimizer: Optimizer = "adam",
    precision: Literal["float32", "bfloat16"] = "float32",
    average: bool = False,
    passes: int = 1,
    processes: int = 1,
    shard: int = 1,
    activation_checkpointing: bool = False,
    masked: tuple[float, MaskTarget] | None = None,
) -> Memory:
    """`shard` is how many processes share one copy of the weights: 1 for DDP, all of them for FSDP, between for hybrid.

    `passes` is how many micro-batches make a step. With several, gradients are sent to the others after the last one only,
    which saves time and costs memory: until then FSDP holds them whole, and DDP beside its buckets.
    `masked`: the share of patches and the target of masked-patch prediction, whose predictor and answers count too.
    """
    for name, value in (("micro_batch", micro_batch), ("passes", passes), ("processes", processes), ("shard", shard)):
        if value < 1:
            raise VitreousError(f"{name}={value}: must be at least 1")
    if processes % shard:
        raise VitreousError(f"a shard group of {shard} does not divide the {processes} processes; choose a divisor")
    kept = _kept(config, precision, masked)
    if activation_checkpointing and not kept.inside:
        raise VitreousError(f"activation checkpointing is for models with blocks; {config.name} has none")

    whole = _FLOAT * sum(kept.weights)
    own = _ceil(whole, shard)
    working = micro_batch * _WORKING * kept.largest + _FLOAT * _WORKING_WEIGHTS * kept.largest_weight
    buckets = whole if passes > 1 and processes > 1 else 0
    sent = _gathered(kept) if shard > 1 else buckets
    # Checkpointed, blocks keep what enters them; the backward pass has the inside of one block at a time.
    inside = max(kept.inside) if activation_checkpointing else sum(kept.inside)
    return Memory(
        parameters=own,
        gradients=whole if passes > 1 else own,
        optimizer=own * _MOMENTS[optimizer],
        average=own if average else 0,
        activations=micro_batch * (kept.outside + kept.entering + inside),
        buffers=working + kept.once + sent,
    )


def _gathered(kept: _Kept) -> int:
    """What FSDP2 holds whole: two blocks, one fetched while the other computes, each beside the buffer it arrived in, and
    the gradient of one; what is outside of blocks, with its gradient, from the first to the last."""
    *blocks, outside = kept.weights
    return _FLOAT * (5 * max(blocks, default=0) + 2 * outside)


def _ceil(size: int, parts: int) -> int:
    return -(-size // parts)


@cache
def _kept(config: ModelConfig, precision: str, masked: tuple[float, MaskTarget] | None) -> _Kept:
    model = build_on_meta(config).train()
    trained: Model | MaskedPatches = model
    blocks = list(model.blocks) if isinstance(model, ViT) else []
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"),
    ):
        allocate_parameters(model)
        if masked is not None:
            assert isinstance(model, ViT)
            trained = MaskedPatches(model, *masked, scales=())
            trained.trust_images()  # they have no values here that could be looked at
        # Not of one image: an axis of length 1 makes views of what are copies otherwise.
        two, three = (_storages(trained, model, blocks, images) for images in (2, 3))
    # What a third image adds to each storage; copies of weights stay as they are.
    added = [(place, larger - size) for (place, size), (_, larger) in zip(two, three, strict=True)]
    within = [sum(p.numel() for p in block.parameters()) for block in blocks]
    return _Kept(
        inside=tuple(sum(size for place, size in added if place == number) for number in range(len(blocks))),
        entering=sum(size for place, size in added if place == _ENTERING),
        outside=sum(size for place, size in added if place == _OUTSIDE),
        largest=max(size for _, size in added),
        once=sum(size for _, size in two) - 2 * sum(size for _, size in added),
        largest_weight=max(p.numel() for p in trained.parameters()),
        weights=(*within, sum(p.numel() for p in trained.parameters()) - sum(within)),
    )


def _storages(trained: nn.Module, model: Model, blocks: list[nn.Module], images: int) -> list[tuple[int, int]]:
    """What autograd keeps in a forward pass, in order: the block that kept it first, and its bytes."""
    kept: dict[int, tuple[int, Tensor]] = {}
    entering: set[int] = set()
    place = _OUTSIDE

    def enter(block: nn.Module, given: tuple[Any, ...]) -> None:
        nonlocal place
        place = blocks.index(block)
        entering.add(given[0].untyped_storage()._cdata)

    def leave(*_: Any) -> None:
        nonlocal place
        place = _OUTSIDE

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, (place, tensor))
        return tensor

    handles = [block.register_forward_pre_hook(enter) for block in blocks]
    handles += [block.register_forward_hook(leave) for block in blocks]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        trained(torch.empty(images, model.config.channels, *model.config.image_size))
    for handle in handles:
        handle.remove()
    weights = {parameter.untyped_storage()._cdata for parameter in trained.parameters()}
    return [
        (_ENTERING if key in entering else place, tensor.untyped_storage().nbytes())
        for key, (place, tensor) in kept.items()
        if key not in weights
    ]
