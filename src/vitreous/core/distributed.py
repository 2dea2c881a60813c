"""This process among the others that `torchrun` started, and the collectives between them.

Callers use the collectives whether there are other ranks or not: alone, each of them returns its argument.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitreous.core.errors import VitreousError


@dataclass(frozen=True)
class World:
    rank: int
    world_size: int
    device: torch.device
    # The process group for objects and numbers in CPU memory.
    cpu_group: Any = None
    # States are written by a second thread, whose messages must not mix with those of the first.
    state_group: Any = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0


@contextlib.contextmanager
def init_distributed(device: str, timeout: timedelta = timedelta(minutes=30)) -> Iterator[World]:
    """The world of this process: of size 1, unless `torchrun` started it."""
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    own_device = torch.device(device)
    if own_device.type == "cuda" and own_device.index is None:
        own_device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(own_device)
    if world_size == 1:
        yield World(0, 1, own_device)
        return
    initialised_here = not dist.is_initialized()
    if initialised_here:
        backend = "cpu:gloo,cuda:nccl" if own_device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timeout)
    try:
        groups = [dist.new_group(backend="gloo", timeout=timeout) for _ in range(2)]
        yield World(rank, world_size, own_device, *groups)
    finally:
        if initialised_here:
            dist.destroy_process_group()


def all_reduce_sum(world: World, numbers: Tensor) -> Tensor:
    """The sum over all ranks, in place. `numbers` lies in CPU memory."""
    if world.world_size > 1:
        dist.all_reduce(numbers, group=world.cpu_group)
    return numbers


def all_reduce_by_name(world: World, numbers: Mapping[str, float]) -> dict[str, float]:
    """The sums over all ranks, under the same names; every rank gives the same names in the same order."""
    sums = all_reduce_sum(world, torch.tensor([float(number) for number in numbers.values()], dtype=torch.float64))
    return dict(zip(numbers, sums.tolist(), strict=True))


def broadcast(world: World, value: Any) -> Any:
    """The main rank's value, at every rank."""
    if world.world_size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=world.cpu_group)
    return box[0]


def broadcast_or_raise(world: World, make: Callable[[], Any]) -> Any:
    """What the main rank makes, at every rank; or its error, at every rank."""
    made: Any = None
    if world.is_main:
        try:
            made = make()
        except VitreousError as error:
            made = error
        except OSError as error:  # as an error of ours, or the other ranks would wait forever
            made = VitreousError(f"{error.filename}: {error.strerror}; choose another place")
    made = broadcast(world, made)
    if isinstance(made, VitreousError):
        raise made
    return made


def all_gather(world: World, value: Any) -> list[Any]:
    """The values of all ranks, at every rank."""
    if world.world_size == 1:
        return [value]
    boxes: list[Any] = [None] * world.world_size
    dist.all_gather_object(boxes, value, group=world.cpu_group)
    return boxes


def local_world_size(world: World) -> int:
    """How many ranks run on this machine, and share its memory."""
    return min(world.world_size, int(os.environ.get("LOCAL_WORLD_SIZE", world.world_size)))
