"""How many threads train fastest on this processor: measured once per processor, model shape and batch, and kept on disk.

A small model's threads wait for each other longer than they work, most of all on a busy machine. Sums depend on the number of
threads, so what was found is kept in `config.json` too: a run that is resumed or replayed takes it from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch

from vitreous.core.device import using_threads
from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.core.files import cache_dir, write_text
from vitreous.core.untrusted_json import read_json
from vitreous.models.config import config_to_json
from vitreous.models.cost import compute_cost
from vitreous.training.config import RunConfig, RunRecord
from vitreous.training.objectives.build import build_objective, trial_pass
from vitreous.training.optim import freeze

VARIABLE = "OMP_NUM_THREADS"  # set by the user or by torchrun: respected, and nothing is measured
ROUNDS = 3
MACS = 2e10  # multiply-adds of one trial's forward pass, at most (one image at least): seconds for any model
WORTH = 1.1  # times the speed of one thread, from which on all are taken


def with_threads(config: RunConfig, world: World, before: RunRecord | None) -> RunConfig:
    """The config with its number of threads: as it was before, as it was measured before, or measured now."""
    most = available()
    if torch.device(config.device).type != "cpu" or world.world_size > 1 or VARIABLE in os.environ or most == 1:
        return config
    if before is not None and before.threads <= (os.cpu_count() or 1):
        return dataclasses.replace(config, threads=before.threads)
    place = cache_dir() / "threads" / f"{_key(config, most)}.json"
    seconds = _remembered(place)
    when = "as measured before"
    if seconds is None:
        seconds, when = measure(config, most), "measured now and kept"
        with contextlib.suppress(VitreousError):  # a cache that cannot be written costs a measurement, not a run
            write_text(place, json.dumps(seconds) + "\n")
    one, all_ = seconds
    chosen = most if one >= WORTH * all_ else 1
    why = f"threads {chosen}: a step takes {1e3 * one:.3g} ms with one and {1e3 * all_:.3g} ms with {most}, {when}"
    return dataclasses.replace(config, threads=chosen, decisions=(*config.decisions, why))


def available() -> int:
    return torch.get_num_threads()


def measure(config: RunConfig, most: int) -> tuple[float, float]:
    """Seconds of a forward and backward pass with one thread and with all; weights and random state are left alone."""
    batch = config.micro_batch or config.recipe.batch_size
    images = max(1, min(batch, int(MACS / max(1.0, compute_cost(config.model).macs))))
    found: dict[int, list[float]] = {1: [], most: []}
    with torch.random.fork_rng(devices=[]), using_threads(most):
        eager = dataclasses.replace(config, options=dataclasses.replace(config.options, engine="torch"))
        objective = build_objective(eager).train()
        freeze(objective, config.recipe)
        for _ in range(ROUNDS + 1):
            for threads, times in found.items():  # in turn: what else the machine does then disturbs both alike
                torch.set_num_threads(threads)
                began = time.perf_counter()
                trial_pass(objective, config.model, images, config.precision)
                times.append(time.perf_counter() - began)
    one, all_ = (statistics.median(times[1:]) for times in found.values())  # the first also makes what is made once
    return one, all_


def _key(config: RunConfig, most: int) -> str:
    shape = {name: value for name, value in config_to_json(config.model).items() if name != "name"}
    batch = config.micro_batch or config.recipe.batch_size
    recipe, checkpointing = config.recipe, config.options.activation_checkpointing
    work = (shape, batch, config.precision, recipe.objective, recipe.train, checkpointing)
    about = (_processor(), most, work, str(torch.__version__))
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _processor() -> str:
    """Its model and number of cores; the operating system's word for it where it does not tell."""
    with contextlib.suppress(OSError):
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        return f"{names[0] if names else platform.machine()} x {os.cpu_count()}"
    return f"{platform.processor()} x {os.cpu_count()}"


def _remembered(place: Path) -> tuple[float, float] | None:
    try:
        one, all_ = read_json(place)
        return float(one), float(all_)
    except (OSError, ValueError, TypeError):
        return None
