"""How a step is divided into passes: how many images go through the model at once."""

from __future__ import annotations

import dataclasses
import functools

import torch

from vitreous.core.distributed import World, all_gather, local_world_size
from vitreous.core.errors import VitreousError
from vitreous.core.memory import free_memory
from vitreous.training.config import Previous, RunConfig, RunRecord
from vitreous.training.memory import memory_per_device
from vitreous.training.micro_batch import SHARE, find_micro_batch
from vitreous.training.objectives.build import OBJECTIVES, build_objective
from vitreous.training.options import TrainOptions
from vitreous.training.parallel import shard_size
from vitreous.training.threads import with_threads


def fit_micro_batch(config: RunConfig, options: TrainOptions, previous: Previous, world: World) -> RunConfig:
    """The config with its micro-batch, and with the number of threads for it."""
    divided = _with_micro_batch(config, options, previous, world)
    return with_threads(divided, world, previous.resumed or previous.replayed)


def _with_micro_batch(config: RunConfig, options: TrainOptions, previous: Previous, world: World) -> RunConfig:
    """The config with its micro-batch: as asked, as it was, as many images as fit, or (auto) as many as are fastest."""
    shard_size(config.options.parallel, config.options.shard_group, world)  # refuses what does not go together
    text = options.micro_batch
    if text is not None and text != "auto":
        return dataclasses.replace(config, micro_batch=int(text))
    before, replayed = previous
    if before is None and replayed is not None and _divided_alike(replayed, config, world):
        before = replayed
    if before is not None and before.options.get("micro_batch") == text:
        return dataclasses.replace(config, micro_batch=before.micro_batch)
    own = config.recipe.batch_size // world.world_size
    if own < 1 or config.recipe.batch_size % world.world_size:
        raise VitreousError(
            f"--batch-size {config.recipe.batch_size} cannot be dealt to {world.world_size} processes; choose a multiple"
        )
    size, why = _measured(config, own, world) if text == "auto" else _fitting(config, own, world)
    return dataclasses.replace(config, micro_batch=size, decisions=(*config.decisions, *([why] if why else [])))


def _divided_alike(replayed: RunRecord, config: RunConfig, world: World) -> bool:
    return (replayed.recipe.get("batch_size"), replayed.world_size) == (config.recipe.batch_size, world.world_size)


def _needed(config: RunConfig, own: int, world: World, images: int) -> int:
    recipe = config.recipe
    memory = memory_per_device(
        config.model,
        micro_batch=images,
        optimizer=recipe.optimizer,
        precision=config.precision,
        average=bool(recipe.average),
        passes=-(-own // images),
        processes=world.world_size,
        shard=shard_size(config.options.parallel, config.options.shard_group, world),
        activation_checkpointing=config.options.activation_checkpointing,
        masked=(recipe.mask_share, recipe.mask_target) if OBJECTIVES[recipe.objective].masks_patches else None,
    )
    return memory.total


def _fitting(config: RunConfig, own: int, world: World) -> tuple[int, str | None]:
    """All at once, unless memory is short. Processes of one machine share it."""
    if torch.device(config.device).type == "cuda":
        free: int | None = torch.cuda.mem_get_info()[0]
    else:
        found = free_memory()
        free = None if found is None else found // local_world_size(world)
    sizes = [size for size in range(own, 0, -1) if own % size == 0]
    fits = (size for size in sizes if free is None or _needed(config, own, world, size) <= SHARE * free)
    size = min(all_gather(world, next(fits, 1)))
    why = f"micro-batch {size}: {own} images at once would not fit into the memory that is free ({SHARE:.0%} of it is used)"
    return size, None if size == own else why


def _measured(config: RunConfig, own: int, world: World) -> tuple[int, str]:
    objective = build_objective(config).to(config.device).train()

    def one_pass(images: int) -> None:
        shape = (images, config.model.channels, *config.model.image_size)
        with torch.autocast(torch.device(config.device).type, torch.bfloat16, enabled=config.precision == "bfloat16"):
            losses, _ = objective(
                torch.zeros(shape, device=config.device), torch.zeros(images, max(1, len(config.classes)), device=config.device)
            )
        losses.sum().backward()
        objective.zero_grad(set_to_none=True)

    needed = functools.partial(_needed, config, own, world)
    size, why = find_micro_batch(one_pass, own, device=config.device, needed=needed)
    smallest = min(all_gather(world, size))
    return smallest, why if smallest == size else f"micro-batch {smallest}: the smallest of what the processes found"
