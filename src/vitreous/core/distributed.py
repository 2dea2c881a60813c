"""One process or many, on one machine or many: who this process is, and how the processes tell each other things.

Started by `torchrun`, every process runs the same program; the environment says which one it is. Whoever measures or trains
calls `total` and `gathered` whether there are others or not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


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
def init_distributed(device: str, patience: timedelta = timedelta(minutes=30)) -> Iterator[World]:
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


def all_reduce_sum(world: World, numbers: Tensor) -> Tensor:
    """The sum over all processes. Numbers lie in ordinary memory."""
    if world.processes > 1:
        dist.all_reduce(numbers, group=world.words)
    return numbers


def broadcast(world: World, value: Any) -> Any:
    """What the first process has, for all."""
    if world.processes == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=world.words)
    return box[0]


def all_gather(world: World, value: Any) -> list[Any]:
    """What each process has, at all of them."""
    if world.processes == 1:
        return [value]
    boxes: list[Any] = [None] * world.processes
    dist.all_gather_object(boxes, value, group=world.words)
    return boxes


def local_world_size(world: World) -> int:
    """On this machine, which share its memory."""
    return min(world.processes, int(os.environ.get("LOCAL_WORLD_SIZE", world.processes)))
