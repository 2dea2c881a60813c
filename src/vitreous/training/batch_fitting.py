"""How a step is divided into passes: how many images go through the model at once.

As many as fit into the memory that is free; or (`--micro-batch auto`) the fastest of those that fit: on an accelerator more
images fill the device, on a processor the caches decide, and fewer are often faster. A number that could exhaust the machine's
memory is not tried, because a process that asks for too much is killed and not told.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import timeit
from collections.abc import Callable, Sequence

import torch

from vitreous.core.distributed import World, all_gather, local_world_size
from vitreous.core.errors import VitreousError
from vitreous.core.memory import free_memory
from vitreous.training.config import Previous, RunConfig
from vitreous.training.memory import memory_per_device
from vitreous.training.objectives.build import OBJECTIVES, build_objective, trial_pass
from vitreous.training.options import TrainOptions
from vitreous.training.parallel import shard_size
from vitreous.training.threads import with_threads

SHARE = 0.8  # of the free memory: the data's workers, the state that is being saved and others need some too
SECONDS = 20.0  # after which no further candidate is timed
_WORSE = 0.8  # of the best speed, from which on larger ones are not tried: they only get slower
_ALIKE = 0.98  # of the best speed: then the larger one, with fewer passes


def fit_micro_batch(config: RunConfig, options: TrainOptions, previous: Previous, world: World) -> RunConfig:
    """The config with its micro-batch, and with the number of threads for it."""
    size, why = _micro_batch(config, options, previous, world)
    divided = dataclasses.replace(config, micro_batch=size, decisions=(*config.decisions, *why))
    return with_threads(divided, world, previous.resumed or previous.replayed)


def _micro_batch(
    config: RunConfig, options: TrainOptions, previous: Previous, world: World
) -> tuple[int | None, tuple[str, ...]]:
    """As asked, as it was, as many images as fit, or (auto) as many as are fastest; and why."""
    shard_size(config.options.parallel, config.options.shard_group, world)  # refuses what does not go together
    batch, text = config.recipe.batch_size, options.micro_batch
    if text is not None and text != "auto":
        return int(text), ()
    before, replayed = previous
    if before is None and replayed and (replayed.recipe["batch_size"], replayed.world_size) == (batch, world.world_size):
        before = replayed
    if before is not None and before.options.get("micro_batch") == text:
        return before.micro_batch, ()
    own = batch // world.world_size
    if own < 1 or batch % world.world_size:
        raise VitreousError(f"--batch-size {batch} cannot be dealt to {world.world_size} processes; choose a multiple")
    free = free_memory(torch.device(config.device))
    if free is not None and torch.device(config.device).type == "cpu":
        free //= local_world_size(world)  # processes of one machine share it
    fitting = [size for size in range(own, 0, -1) if own % size == 0]
    if free is not None:
        fitting = list(itertools.dropwhile(lambda size: _needed(config, own, world, size) > SHARE * free, fitting))
    if text == "auto":
        if not fitting:
            raise VitreousError(
                f"--micro-batch auto: not even one image fits into {SHARE:.0%} of the memory that is free; use a smaller model "
                f"or --image-size, --activation-checkpointing, or --parallel fsdp"
            )
        objective = build_objective(config).to(config.device).train()
        size, why = find_fastest(
            lambda images: trial_pass(objective, config.model, images, config.precision, config.device), fitting
        )
    else:
        size = fitting[0] if fitting else 1
        why = f"{own} images at once would not fit into the memory that is free ({SHARE:.0%} of it is used)"
    smallest = min(all_gather(world, size))
    if text != "auto" and smallest == own:
        return own, ()
    return smallest, (f"micro-batch {smallest}: {why if smallest == size else 'the smallest of what the processes found'}",)


_known: dict[tuple[object, ...], int] = {}  # bytes needed, for the next run of a study


def _needed(config: RunConfig, own: int, world: World, images: int) -> int:
    recipe, options = config.recipe, config.options
    parallel = (world.world_size, options.parallel, options.shard_group, options.activation_checkpointing)
    trained = (recipe.objective, recipe.mask_share, recipe.mask_target, recipe.optimizer, bool(recipe.average))
    key = (config.model, *trained, config.precision, own, images, *parallel)
    if key not in _known:
        _known[key] = _count_bytes(config, own, world, images)
    return _known[key]


def _count_bytes(config: RunConfig, own: int, world: World, images: int) -> int:
    recipe = config.recipe
    config = dataclasses.replace(config, teacher=None)  # whose forward pass keeps nothing
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
        objective=lambda model: OBJECTIVES[recipe.objective].from_config(model, config),
    )
    return memory.total


def find_fastest(run: Callable[[int], None], sizes: Sequence[int], most_seconds: float = SECONDS) -> tuple[int, str]:
    """The number of images that `run` makes the fastest pass with, and why; of falling sizes a few are timed."""
    speeds: dict[int, float] = {}
    best, began = 0.0, time.perf_counter()
    for size in _spaced(sizes):
        try:
            seconds = timeit.repeat(lambda: run(size), number=1, repeat=2 if speeds else 3)  # noqa: B023
        except torch.OutOfMemoryError:  # as accelerators say it; smaller ones fitted
            if not speeds:
                raise
            break
        speeds[size] = size / max(1e-9, min(seconds))  # the first of all also makes what is made once
        best = max(best, speeds[size])
        if speeds[size] < _WORSE * best or time.perf_counter() - began > most_seconds:
            break
    listed = ", ".join(f"{size}: {speed:,.3g}" for size, speed in speeds.items())
    why = f"the fastest of those timed (images/s by size, {listed})"
    return max(size for size, speed in speeds.items() if speed >= _ALIKE * best), why


def _spaced(sizes: Sequence[int]) -> list[int]:
    """Rising, each at least twice the one before, the last one kept: enough to find the place, few enough to time."""
    chosen: list[int] = []
    for size in sizes:
        if not chosen or 2 * size <= chosen[-1]:
            chosen.append(size)
    return chosen[::-1]
