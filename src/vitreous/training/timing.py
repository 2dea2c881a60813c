"""How many steps fit into `--minutes`: measured once, before the first step, on a few steps that are discarded.

Evaluations and the closed form belong to the minutes. Without `--eval-every`, evaluations take a tenth of them, and are ten at
most.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from vitreous.core.device import keep_memory, using_threads
from vitreous.core.distributed import World, all_gather
from vitreous.core.errors import VitreousError
from vitreous.core.progress import say
from vitreous.data.source import Source, Stream
from vitreous.training.closed_form_start import count_images_to_fit, features_are_fixed, keeps_best, starts_from_closed_form
from vitreous.training.config import EVALUATIONS, RunConfig
from vitreous.training.loop import Loop
from vitreous.training.objectives.build import build_objective
from vitreous.training.run_folder import RunFolder

TRIALS = 12  # steps that are timed, at most
SECONDS = 10.0  # after which no more are
EVALUATION_SECONDS = 2.0
UNTIMED = 2  # the first steps also start the workers, and make what is made once
LONG = 1.0  # seconds of a first step, of which what is made once is a small part
EVALUATING = 0.1  # of the minutes


@dataclass(frozen=True)
class Pace:
    """Seconds on the slowest rank."""

    step: float
    image: float  # of all ranks together, to be evaluated or turned into features
    trials: int
    fixed: bool = False  # features are computed once, and evaluating them again takes no time


@dataclass(frozen=True)
class Length:
    """Of a run in given minutes."""

    steps: int
    eval_every: int
    reason: str


def fit_into_minutes(config: RunConfig, minutes: float, world: World) -> Length:
    height, width = config.model.image_size
    if world.is_main:
        say(f"timing a few steps of {config.model.name} at {height} x {width} pixels")
    pace = measure_pace(config, world)
    once = _count(config.held_out) * pace.image
    evaluation = 0.0 if pace.fixed else once
    every = config.options.eval_every
    times = min(EVALUATIONS, max(1, int(EVALUATING * 60 * minutes / evaluation))) if evaluation else EVALUATIONS
    if every is not None:
        times = 0 if every else 1  # those on the way are counted with the steps
    beside = times * evaluation + _count(config.test) * pace.image
    if closed_form := starts_from_closed_form(config):
        beside += once * (1 + (pace.fixed or keeps_best(config)))  # before the first step, and once more of the result
    step = pace.step + (evaluation / every if every else 0.0)
    steps = _steps(config, 60 * minutes - beside, step, pace.image if closed_form else 0.0)
    if steps < 1:
        also = " and the closed form" if closed_form else ""
        beside += pace.image * count_images_to_fit(config, 1) if closed_form else 0.0
        raise VitreousError(
            f"--minutes {minutes:g}: a step of {config.recipe.batch_size:,} images takes {pace.step:.3g} s here and evaluation"
            f"{also} {beside:.3g} s; give more, or a smaller --batch-size, --image-size or --model"
        )
    others = "evaluation and the closed form take" if closed_form else "evaluation takes"
    reason = (
        f"steps {steps:,}: --minutes {minutes:g}; a step took {1e3 * pace.step:.3g} ms, the median of {pace.trials}; "
        f"{others} about {60 * minutes - steps * pace.step:,.0f} s"
    )
    return Length(steps, max(1, -(-steps // max(1, times))), reason)


def _steps(config: RunConfig, seconds: float, step: float, image: float) -> int:
    """As many as fit. The closed form is fitted to more images in a longer run, `image` seconds each."""
    steps = int(seconds / step)
    while steps > 0 and steps * step + image * count_images_to_fit(config, steps) > seconds:
        steps = min(steps - 1, int((seconds - image * count_images_to_fit(config, steps)) / step))
    return steps


def _count(data: Source | Stream | None) -> int:
    return 0 if data is None else len(data) if isinstance(data, Source) else data.count() or 0


def measure_pace(config: RunConfig, world: World) -> Pace:
    """On a model of its own; the random state is as before."""
    keep_memory()  # as the run itself does
    devices = [] if world.device.type == "cpu" else [world.device]
    with torch.random.fork_rng(devices, device_type=world.device.type), using_threads(config.threads):
        loop = Loop(config, build_objective(config), world, RunFolder(config.out, world))
        with contextlib.closing(loop.loader.training(0)) as batches:  # type: ignore[type-var]
            fixed = starts_from_closed_form(config) and features_are_fixed(config, loop)
            batch = next(batches)
            evaluating = _time(lambda: loop.try_evaluation(batch), EVALUATION_SECONDS, world)
            if fixed:  # computed once; a step learns from them
                features = replace(batch, images=torch.randn(len(batch), config.model.feature_width))
                steps = _time(lambda: loop.try_step(features), SECONDS, world)
            else:
                steps = _time(lambda: loop.try_step(next(batches)), SECONDS, world)
    step, image = statistics.median(steps), statistics.median(evaluating) / config.recipe.batch_size
    return Pace(max(all_gather(world, step)), max(all_gather(world, image)), len(steps), fixed)


def _time(run: Callable[[], None], seconds: float, world: World) -> list[float]:
    """Seconds of each call after the first ones; all ranks call equally often."""
    calls: list[float] = []
    while True:
        began = time.perf_counter()
        run()
        calls.append(time.perf_counter() - began)
        timed = calls[1 if max(all_gather(world, calls[0])) > LONG else UNTIMED :]
        if len(timed) >= TRIALS or any(all_gather(world, sum(timed) > seconds)):
            return timed
