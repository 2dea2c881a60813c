"""One process or many, on one machine or many: who this process is, and how the model is spread over all of them.

Started by `torchrun`, every process runs the same program; the environment says which one it is. Nothing else in the
package asks: model code has no `if distributed`, and the loop calls `total` and `spread` whether there are others or not.

    ddp      every process holds the whole model; gradients are averaged
    fsdp     parameters, gradients and optimiser state are divided over all processes (FSDP2)
    hybrid   divided within groups of `shard_group` processes, usually a machine; copied between the groups
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from vitreous.errors import VitreousError
from vitreous.models.vit import ViT

Parallel = Literal["ddp", "fsdp", "hybrid"]


@dataclass(frozen=True)
class World:
    process: int
    processes: int
    device: torch.device
    words: Any = None  # the process group over which numbers in ordinary memory are sent
    saving: Any = None  # another one for states, which are written by another thread: words would get mixed up

    @property
    def first(self) -> bool:
        return self.process == 0


@contextlib.contextmanager
def joined(device: str, patience: timedelta = timedelta(minutes=30)) -> Iterator[World]:
    """This process among the others; alone, unless `torchrun` started it."""
    processes, process = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    kind = torch.device(device)
    if kind.type == "cuda" and kind.index is None:
        kind = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(kind)
    if processes == 1:
        yield World(0, 1, kind)
        return
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("cpu:gloo,cuda:nccl" if kind.type == "cuda" else "gloo", timeout=patience)
    try:
        groups = [dist.new_group(backend="gloo", timeout=patience) for _ in range(2)]
        yield World(process, processes, kind, *groups)
    finally:
        if mine:
            dist.destroy_process_group()


def total(world: World, numbers: Tensor) -> Tensor:
    """The sum over all processes. Numbers lie in ordinary memory."""
    if world.processes > 1:
        dist.all_reduce(numbers, group=world.words)
    return numbers


def told(world: World, value: Any) -> Any:
    """What the first process has, for all."""
    if world.processes == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=world.words)
    return box[0]


def gathered(world: World, value: Any) -> list[Any]:
    """What each process has, at all of them."""
    if world.processes == 1:
        return [value]
    boxes: list[Any] = [None] * world.processes
    dist.all_gather_object(boxes, value, group=world.words)
    return boxes


def processes_here(world: World) -> int:
    """On this machine, which share its memory."""
    return min(world.processes, int(os.environ.get("LOCAL_WORLD_SIZE", world.processes)))


def shard_size(how: Parallel, shard_group: int | None, world: World) -> int:
    """How many processes share one copy of the parameters."""
    if shard_group is not None and how != "hybrid":
        raise VitreousError(f"--shard-group {shard_group} is for --parallel hybrid, not for {how}")
    if how == "ddp" or world.processes == 1:
        return 1
    within = world.processes if how == "fsdp" else shard_group or processes_here(world)
    if world.processes % within:
        raise VitreousError(f"--shard-group {within} does not divide the {world.processes} processes")
    return within


def spread(objective: nn.Module, how: Parallel, shard_group: int | None, world: World) -> nn.Module:
    """The objective as the loop calls it. Its own parameters stay reachable, under their own names, in `objective`."""
    if world.processes == 1:
        return objective
    if how == "ddp":
        return DistributedDataParallel(objective, gradient_as_bucket_view=True)
    within = shard_size(how, shard_group, world)
    shape, names = ((within,), ("shard",)) if how == "fsdp" else ((world.processes // within, within), ("copy", "shard"))
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
    model = objective.model
    for block in model.blocks if isinstance(model, ViT) else ():
        fully_shard(block, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    return objective


@contextlib.contextmanager
def accumulating(module: nn.Module, last: bool) -> Iterator[None]:
    """A backward pass of one micro-batch; gradients are sent to the others after the `last` one only."""
    if isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    yield


def resharded(module: nn.Module) -> None:
    """After a forward pass without a backward one, FSDP leaves the outermost parameters whole; put them back in pieces."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be divided; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own(tensor: Tensor) -> Tensor:
    """This process's piece of a tensor that may be divided, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
