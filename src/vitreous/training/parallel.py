"""How the model is spread over all processes.

Model code knows nothing of it: the loop calls `spread`, alone or not.

    ddp      every process holds the whole model; gradients are averaged
    fsdp     parameters, gradients and optimiser state are divided over all processes (FSDP2)
    hybrid   divided within groups of `shard_group` processes, usually a machine; copied between the groups
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from vitreous.core.distributed import World, local_world_size
from vitreous.core.errors import VitreousError
from vitreous.models.vit import ViT
from vitreous.training.options import Parallel


def shard_size(how: Parallel, shard_group: int | None, world: World) -> int:
    """How many processes share one copy of the parameters."""
    if shard_group is not None and how != "hybrid":
        raise VitreousError(f"--shard-group {shard_group} is for --parallel hybrid, not for {how}")
    if how == "ddp" or world.world_size == 1:
        return 1
    within = world.world_size if how == "fsdp" else shard_group or local_world_size(world)
    if world.world_size % within:
        raise VitreousError(f"--shard-group {within} does not divide the {world.world_size} processes")
    return within


def parallelize(objective: nn.Module, how: Parallel, shard_group: int | None, world: World) -> nn.Module:
    """The objective as the loop calls it. Its own parameters stay reachable, under their own names, in `objective`."""
    if world.world_size == 1:
        return objective
    if how == "ddp":
        return DistributedDataParallel(objective, gradient_as_bucket_view=True)
    within = shard_size(how, shard_group, world)
    shape, names = ((within,), ("shard",)) if how == "fsdp" else ((world.world_size // within, within), ("copy", "shard"))
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


def needs_warmup_backward(module: nn.Module) -> bool:
    """Whether sums over processes are added up in another order from the second backward pass on.

    DDP then arranges its buckets by the order in which gradients came, once in the life of a process. A run that goes on in new
    processes would add up its first step otherwise than a run that was not interrupted; so every start makes one pass more.
    """
    return isinstance(module, DistributedDataParallel)


def resharded(module: nn.Module) -> None:
    """After a forward pass without a backward one, FSDP leaves the outermost parameters whole; put them back in pieces."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor that may be divided; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """This process's piece of a tensor that may be divided, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
