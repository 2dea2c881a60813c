"""What models cost in practice (appendix D.5, Figure 12): images per second, and the largest batch that fits, by image size.

Inference alone, as in the paper. A model's speed is that of its fastest batch size; with a small budget, large batches are not
tried. The models of one image size are timed in turns, round after round, and the median counts, so that a slow moment of the
machine does not fall on one of them. Which batch fits is tried on an accelerator. A process on a CPU that asks for too much
is killed and not told, so there it is computed from the tensors that are alive at the worst moment of a forward pass.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vitreous.core.device import PrecisionName, choose_device
from vitreous.core.errors import VitreousError
from vitreous.core.memory import free_memory
from vitreous.core.output_dir import check_writable
from vitreous.core.progress import say
from vitreous.inference.runner import Runner
from vitreous.inspection.figure_style import save
from vitreous.models.build import allocate_parameters, build_on_meta, create
from vitreous.models.config import ModelConfig
from vitreous.models.cost import compute_cost
from vitreous.models.names import model_family, parse_name
from vitreous.studies.cost_figure import draw_cost
from vitreous.studies.cost_rows import CostRow, read_rows, write_rows
from vitreous.training.batch_fitting import SHARE, find_fastest
from vitreous.training.memory import LivingTensors

FIGURE_12 = ("R50x1", "R50x2", "R152x4", "ViT-B/32", "ViT-L/32", "ViT-B/16", "ViT-L/16", "ViT-H/14")
"""The models of the paper's figure."""
MODELS = ("ViT-B/32", "ViT-B/16", "R50x1", "R50x2", "R50+ViT-B/32", "R50+ViT-B/16")
"""Of each family two, so that a machine without an accelerator can do it in minutes."""
SIZES = (64, 128, 224, 384, 512)
RUNS = "runs.csv"
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 9
_TIMED = (1, 4, 16, 64, 256)  # batch sizes
_LARGEST = 1 << 20  # batch that is tried
_FLOAT = 4  # bytes


def run_cost_study(
    out: Path,
    models: Sequence[str] = MODELS,
    sizes: Sequence[int] = SIZES,
    device: str = "auto",
    budget_seconds: float = 900.0,
    precision: PrecisionName = "float32",
) -> list[CostRow]:
    """Measure what OUT/runs.csv does not have yet, and write it and figure.png and figure.svg."""
    device = choose_device(device)
    check_grid(models, sizes)
    check_writable("--out", out)
    rows = read_rows(out / RUNS)
    for row in rows:
        if (row.device, row.precision) != (device, precision):
            raise VitreousError(
                f"{out / RUNS}: was measured on {row.device} in {row.precision}, not on {device} in {precision}; "
                f"choose another --out"
            )
    done = {(row.arm, row.image_size) for row in rows}
    missing = {(model, size) for model in models for size in sizes} - done
    say(f"cost: {len(missing)} measurements to do on {device}, {len(done)} there, in about {budget_seconds:,.0f} s")
    # All rows of a folder are for the same memory, though what is free changes.
    memory = rows[0].memory_bytes if rows else None
    for row in measure_cost(models, sizes, device, budget_seconds, precision, memory=memory, done=done):
        rows.append(row)
        write_rows(out / RUNS, rows)
    if not rows:
        raise VitreousError(f"--budget: {budget_seconds:,.0f} s are too few for one measurement; give more, or smaller models")
    save(draw_cost(rows), out, "figure")
    return rows


def check_grid(models: Sequence[str], sizes: Sequence[int]) -> None:
    """Refuse models that do not exist, and those that no size fits."""
    if not models or not sizes:
        raise VitreousError("the cost study needs at least one model and one image size")
    for model in models:
        problems = [problem for size in sizes if (problem := _find_problem(model, size))]
        if len(problems) == len(sizes):
            raise problems[0]


def _find_problem(model: str, size: int) -> VitreousError | None:
    try:
        parse_name(model, image_size=size)
    except VitreousError as error:
        return error
    return None


def measure_cost(
    models: Sequence[str],
    sizes: Sequence[int],
    device: str,
    budget_seconds: float,
    precision: PrecisionName = "float32",
    *,
    memory: int | None = None,
    done: Collection[tuple[str, int]] = (),
) -> Iterator[CostRow]:
    """Rows of all models, size after size, small ones first; without those that are `done`.

    Sizes that a model's patch does not divide are left out. No size is begun when the budget is used up.
    """
    if memory is None:
        memory = int(SHARE * (free_memory(torch.device(device)) or 0))
    began = time.perf_counter()
    ordered = sorted(sizes)
    for place, size in enumerate(ordered):
        left = budget_seconds - (time.perf_counter() - began)
        names = [model for model in models if (model, size) not in done]
        unfit = [model for model in names if _find_problem(model, size)]
        if unfit:
            say(f"cost: {size} pixels: left out, because its patch does not divide them: {', '.join(unfit)}")
        names = [model for model in names if model not in unfit]
        if names and left <= 0:
            say(f"cost: the budget is used up before {size} pixels; start again with more to measure the rest")
            return
        if names:
            yield from _measure_size(names, size, device, precision, memory, left / (len(ordered) - place))


@dataclass
class _Trial:
    """A model that is being timed."""

    config: ModelConfig
    runner: Runner
    images: torch.Tensor
    largest: int
    spent: float
    seconds: list[float] = dataclasses.field(default_factory=list)

    def time_pass(self) -> None:
        began = time.perf_counter()
        self.runner.run_once(self.images)  # its outputs are on the CPU when it returns
        self.seconds.append(time.perf_counter() - began)


def _measure_size(
    names: Sequence[str], size: int, device: str, precision: PrecisionName, memory: int, budget: float
) -> Iterator[CostRow]:
    """All models at one image size, in turns."""
    began = time.perf_counter()
    with contextlib.ExitStack() as open_runners:
        trials = []
        for name in names:
            start = time.perf_counter()
            runner = open_runners.enter_context(Runner(create(name, image_size=size), device, precision))
            batch, largest = _find_batches(runner, device, memory, budget / (2 * len(names)))
            images = _make_images(runner, batch)
            trials.append(_Trial(runner.model.config, runner, images, largest, time.perf_counter() - start))
        for turn in range(_MOST_ROUNDS):
            if turn >= _FEWEST_ROUNDS and time.perf_counter() - began > budget:
                break
            for trial in trials[turn % len(trials) :] + trials[: turn % len(trials)]:  # none is always first
                trial.time_pass()
    for trial in trials:
        yield _make_row(trial, size, device, precision, memory)


def _find_batches(runner: Runner, device: str, memory: int, seconds: float) -> tuple[int, int]:
    """The fastest number of images, and the largest that fits."""
    if torch.device(device).type == "cpu":
        largest = estimate_largest_batch(runner.model.config, memory, runner.precision)
    else:
        largest = find_largest_batch(lambda batch: runner.run_once(_make_images(runner, batch)))
    sizes = [batch for batch in _TIMED if batch <= max(1, largest)]
    made: dict[int, torch.Tensor] = {}

    def run(batch: int) -> None:
        if batch not in made:
            made.clear()
            made[batch] = _make_images(runner, batch)
        runner.run_once(made[batch])

    return find_fastest(run, sizes[::-1], seconds)[0], largest


def _make_images(runner: Runner, batch: int) -> torch.Tensor:
    config = runner.model.config
    return torch.randn(batch, config.channels, *config.image_size, device=runner.device)


def find_largest_batch(run: Callable[[int], Any]) -> int:
    """The largest batch that `run` does not fail with for lack of memory, to within an eighth."""

    def fits(batch: int) -> bool:
        try:
            run(batch)
        except torch.OutOfMemoryError:
            return False
        return True

    good = 0
    while good < _LARGEST and fits(max(1, 2 * good)):
        good = max(1, 2 * good)
    step = good // 2
    while good < _LARGEST and step and 16 * step >= good:
        good += step if fits(good + step) else 0
        step //= 2
    return good


def estimate_largest_batch(config: ModelConfig, memory: int, precision: PrecisionName = "float32") -> int:
    """How many images' forward pass fits into so many bytes beside the weights."""
    free = memory - _FLOAT * sum(parameter.numel() for parameter in build_on_meta(config).parameters())
    # Which moment is the worst depends on the number of images: bytes are the maximum of straight lines, so convex, and
    # Newton's steps from above end at the answer.
    batch = _LARGEST
    while batch and (used := forward_bytes(config, batch, precision)) > free:
        each = used - (forward_bytes(config, batch - 1, precision) if batch > 1 else 0)
        batch = max(0, batch + (free - used) // max(1, each))
    return batch


def forward_bytes(config: ModelConfig, images: int, precision: PrecisionName = "float32") -> int:
    """Bytes of images and activations at the worst moment of a forward pass, found on tensors without data."""
    model = build_on_meta(config).eval()
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        allocate_parameters(model)
        with LivingTensors() as living, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            model(torch.empty(images, config.channels, *config.image_size))
    return living.peak


def _make_row(trial: _Trial, size: int, device: str, precision: PrecisionName, memory: int) -> CostRow:
    cost = compute_cost(trial.config)
    speeds = [len(trial.images) / seconds for seconds in trial.seconds]
    return CostRow(
        arm=trial.config.name,
        seed=0,
        family=model_family(trial.config.name),
        image_size=size,
        device=device,
        precision=precision,
        threads=torch.get_num_threads(),
        parameters=cost.parameters,
        macs=cost.macs,
        batch=len(trial.images),
        images_per_second=statistics.median(speeds),
        images_per_second_low=min(speeds),
        images_per_second_high=max(speeds),
        rounds=len(speeds),
        largest_batch=trial.largest,
        largest_batch_by="estimate" if torch.device(device).type == "cpu" else "trying",
        memory_bytes=memory,
        flops=2 * cost.macs,
        seconds=trial.spent + sum(trial.seconds),
    )
