"""How much memory a training step needs on each device, computed before anything is built.

    memory_per_device(parse("ViT-L/16", image_size=384), micro_batch=8, optimizer="adam", processes=8, shard=8).total

Weights, gradients, optimiser and average are counted. What a pass needs beside them is found by running the objective once
forwards and backwards on tensors without data, in the precision asked for, and counting what is alive at the worst moment.
The loop's habits are assumed: float32 weights with autocast, gradients inside DDP's buckets, FSDP2 block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitreous.models.build import Model, allocate_parameters, build_on_meta
from vitreous.models.config import ModelConfig
from vitreous.models.vit import ViT
from vitreous.training.objectives.build import checkpoint_activations, trial_pass
from vitreous.training.objectives.classification import Classification
from vitreous.training.objectives.objective import Objective
from vitreous.training.recipes.recipe import Optimizer

_FLOAT = 4  # bytes
_MOMENTS = {"adam": 2, "sgd": 1, "muon": 2}  # muon: of what Adam trains; of matrices one


@dataclass(frozen=True)
class Memory:
    """Bytes on one device at the worst moment of a step."""

    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int  # of one micro-batch, with what single operations need for themselves and weights in bfloat16
    buffers: int  # of DDP, and blocks put together by FSDP

    @property
    def total(self) -> int:
        return sum(vars(self).values())


def _classification(model: Model) -> Objective:
    return Classification(model, "softmax")


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
    objective: Callable[[Model], Objective] = _classification,
) -> Memory:
    """`shard` is how many processes share one copy of the weights: 1 for DDP, all of them for FSDP, between for hybrid.

    `passes` is how many micro-batches make a step. With several, gradients are sent to the others after the last one only,
    which saves time and costs memory: until then FSDP holds them whole, and DDP beside its buckets.
    """
    model = build_on_meta(config).train()
    if activation_checkpointing:
        checkpoint_activations(model)
    # Whatever mode the caller is in: what a backward pass needs is the question.
    with torch.inference_mode(False), torch.enable_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        trained = objective(allocate_parameters(model))
        for parameter in trained.parameters():  # of an earlier pass, or DDP's buckets: there from the beginning
            parameter.grad = torch.zeros_like(parameter)
        with LivingTensors() as living:
            trial_pass(trained, config, micro_batch, precision)
    whole = _FLOAT * sum(parameter.numel() for parameter in trained.parameters())
    own = -(-whole // shard)
    buckets = whole if passes > 1 and processes > 1 else 0
    return Memory(
        parameters=own,
        gradients=whole if passes > 1 else own,
        optimizer=own * _MOMENTS[optimizer],
        average=own if average else 0,
        activations=living.peak,
        buffers=_gathered(model, whole) if shard > 1 else buckets,
    )


def _gathered(model: Model, whole: int) -> int:
    """What FSDP2 holds whole: two blocks, one fetched while the other computes, each beside the buffer it arrived in, and
    the gradient of one; what is outside of blocks, with its gradient, from the first to the last."""
    blocks = [_FLOAT * sum(p.numel() for p in block.parameters()) for block in (model.blocks if isinstance(model, ViT) else ())]
    return 5 * max(blocks, default=0) + 2 * (whole - sum(blocks))


class LivingTensors(TorchDispatchMode):
    """Adds up the memory of all tensors that were made inside and are still referred to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, made = (
            {StorageWeakRef(leaf.untyped_storage()): leaf.untyped_storage().nbytes() for leaf in leaves}
            for leaves in ([leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)] for tree in ((args, kwargs), out))
        )
        made = {storage: size for storage, size in made.items() if storage not in given}  # a view takes nothing
        self._alive = {storage: size for storage, size in (self._alive | made).items() if not storage.expired()}
        self.peak = max(self.peak, sum(self._alive.values()))
        return out
