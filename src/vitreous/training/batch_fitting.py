"""How a step is divided into passes: how many images go through the model at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import torch

from vitreous.core.distributed import World, all_gather, local_world_size
from vitreous.core.errors import VitreousError
from vitreous.core.memory import free_memory
from vitreous.training.config import RunConfig
from vitreous.training.memory import memory_per_device
from vitreous.training.micro_batch import SHARE, find_micro_batch
from vitreous.training.options import TrainOptions
from vitreous.training.parallel import shard_size
from vitreous.training.run_folder import recorded_config
from vitreous.training.threads import with_threads
from vitreous.training.trainer import objective_of


def fit_micro_batch(plan: RunConfig, asked: TrainOptions, world: World, replayed: Mapping[str, Any] | None = None) -> RunConfig:
    """The plan with its micro-batch, and with the number of threads for it."""
    divided = _with_micro_batch(plan, asked, world, replayed)
    return with_threads(divided, world, recorded_config(plan.out) or replayed)


def _with_micro_batch(plan: RunConfig, asked: TrainOptions, world: World, replayed: Mapping[str, Any] | None) -> RunConfig:
    """The plan with its micro-batch: as asked, as it was, as many images as fit, or (auto) as many as are fastest."""
    shard_size(plan.parallel, plan.shard_group, world)  # refuses what does not go together
    text = asked.micro_batch
    if text is not None and text != "auto":
        return dataclasses.replace(plan, micro_batch=int(text))
    before: Mapping[str, Any] | None = recorded_config(plan.out)
    if before is None and replayed is not None and _divided_alike(replayed, plan, world):
        before = replayed
    if before is not None and before["arguments"].get("micro_batch") == text:
        return dataclasses.replace(plan, micro_batch=before["micro_batch"])
    own = plan.recipe.batch_size // world.world_size
    if own < 1 or plan.recipe.batch_size % world.world_size:
        raise VitreousError(
            f"--batch-size {plan.recipe.batch_size} cannot be dealt to {world.world_size} processes; choose a multiple"
        )
    size, why = _measured(plan, own, world) if text == "auto" else _fitting(plan, own, world)
    return dataclasses.replace(plan, micro_batch=size, decisions=(*plan.decisions, *([why] if why else [])))


def _divided_alike(replayed: Mapping[str, Any], plan: RunConfig, world: World) -> bool:
    return (replayed["recipe"].get("batch_size"), replayed.get("processes")) == (plan.recipe.batch_size, world.world_size)


def _needed(plan: RunConfig, own: int, world: World, images: int) -> int:
    recipe = plan.recipe
    memory = memory_per_device(
        plan.model,
        micro_batch=images,
        optimizer=recipe.optimizer,
        precision=plan.precision,
        average=bool(recipe.average),
        passes=-(-own // images),
        processes=world.world_size,
        shard=shard_size(plan.parallel, plan.shard_group, world),
        activation_checkpointing=plan.activation_checkpointing,
        masked=(recipe.mask_share, recipe.mask_target) if recipe.objective == "masked-patch" else None,
    )
    return memory.total


def _fitting(plan: RunConfig, own: int, world: World) -> tuple[int, str | None]:
    """All at once, unless memory is short. Processes of one machine share it."""
    if torch.device(plan.device).type == "cuda":
        free: int | None = torch.cuda.mem_get_info()[0]
    else:
        found = free_memory()
        free = None if found is None else found // local_world_size(world)
    sizes = [size for size in range(own, 0, -1) if own % size == 0]
    fits = (size for size in sizes if free is None or _needed(plan, own, world, size) <= SHARE * free)
    size = min(all_gather(world, next(fits, 1)))
    why = f"micro-batch {size}: {own} images at once would not fit into the memory that is free ({SHARE:.0%} of it is used)"
    return size, None if size == own else why


def _measured(plan: RunConfig, own: int, world: World) -> tuple[int, str]:
    objective = objective_of(plan).to(plan.device).train()

    def one_pass(images: int) -> None:
        shape = (images, plan.model.channels, *plan.model.image_size)
        with torch.autocast(torch.device(plan.device).type, torch.bfloat16, enabled=plan.precision == "bfloat16"):
            losses, _ = objective(
                torch.zeros(shape, device=plan.device), torch.zeros(images, max(1, len(plan.classes)), device=plan.device)
            )
        losses.sum().backward()
        objective.zero_grad(set_to_none=True)

    needed = functools.partial(_needed, plan, own, world)
    size, why = find_micro_batch(one_pass, own, device=plan.device, needed=needed)
    smallest = min(all_gather(world, size))
    return smallest, why if smallest == size else f"micro-batch {smallest}: the smallest of what the processes found"
