"""How many steps fit into `--minutes`: measured once, before the first step, on a few steps that are discarded."""

from __future__ import annotations

import contextlib
import statistics
import time

import torch

from vitreous.core.device import using_threads
from vitreous.core.distributed import World, all_gather
from vitreous.core.errors import VitreousError
from vitreous.data.source import Source
from vitreous.training.closed_form_start import starts_from_closed_form
from vitreous.training.config import EVALUATIONS, RunConfig
from vitreous.training.loop import Loop
from vitreous.training.objectives.build import build_objective
from vitreous.training.run_folder import RunFolder

TRIALS = 12  # steps that are timed, at most
SECONDS = 10.0  # after which no more are
UNTIMED = 2  # the first steps also start the workers, and make what is made once


def count_steps(config: RunConfig, minutes: float, world: World) -> tuple[int, str]:
    """The number of steps, and why; the slowest rank counts. An evaluated image takes a third of a trained one's time, and so
    does one that the head is fitted to before the first step."""
    seconds = _time_steps(config, world)
    each = max(all_gather(world, statistics.median(seconds)))
    held_out = config.held_out
    images = len(held_out) if isinstance(held_out, Source) else held_out.count() or 0 if held_out is not None else 0
    evaluated = EVALUATIONS * images
    if starts_from_closed_form(config):
        evaluated += images + (config.images or 0)
    evaluating = evaluated / config.recipe.batch_size * each / 3
    steps = int((60 * minutes - evaluating) / each)
    if steps < 1:
        raise VitreousError(
            f"--minutes {minutes:g}: a step of {config.recipe.batch_size:,} images takes {each:.3g} s here and the evaluations "
            f"{evaluating:.3g} s; give more, or a smaller --batch-size or --model"
        )
    return steps, (
        f"steps {steps:,}: {minutes:g} minutes as asked; a step took {1e3 * each:.3g} ms, the median of {len(seconds)}, "
        f"evaluations{' and the closed form' if starts_from_closed_form(config) else ''} take about {evaluating:,.0f} s"
    )


def _time_steps(config: RunConfig, world: World) -> list[float]:
    """Seconds of each timed step, with everything that belongs to it, on a model of its own; the random state is as before."""
    seconds: list[float] = []
    devices = [] if world.device.type == "cpu" else [world.device]
    with torch.random.fork_rng(devices, device_type=world.device.type), using_threads(config.threads):
        loop = Loop(config, build_objective(config), world, RunFolder(config.out, world))
        with contextlib.closing(loop.loader.training(0)) as batches:  # type: ignore[type-var]
            while len(seconds) < UNTIMED + TRIALS and not any(all_gather(world, sum(seconds[UNTIMED:]) > SECONDS)):
                began = time.perf_counter()
                loop.try_step(next(batches))
                seconds.append(time.perf_counter() - began)
    return seconds[UNTIMED:]
