"""How large a study can be in the time there is: levels of model, length and images, and a prediction for this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from vitreous.core.errors import VitreousError
from vitreous.core.progress import describe_seconds
from vitreous.data.open import open_data
from vitreous.data.source import Content, Source
from vitreous.models.build import allocate_parameters, build_on_meta
from vitreous.models.config import ModelConfig
from vitreous.models.names import parse_name
from vitreous.studies.study import Cell, Scale, Stage, Study
from vitreous.training.build_options import model_fields


class Level(NamedTuple):
    width: int
    depth: int
    images: int  # seen by a run


LEVELS = (
    Level(32, 2, 128),  # for tests
    Level(64, 4, 12_800),
    Level(64, 4, 32_000),
    Level(64, 4, 64_000),
    Level(64, 4, 128_000),
    Level(96, 6, 256_000),
    Level(128, 6, 1_024_000),
    Level(192, 12, 8_192_000),
)
DEFAULT_LEVEL = 1
_OVERHEAD = 3.0  # seconds of a run beside its steps: opening, evaluating, writing
_LOADING = 2e-4  # seconds to read and augment a small image
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def parse_budget(text: str) -> float:
    """Seconds of `90s`, `30m`, `2h` or `1d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", text.strip())
    if not found or float(found[1]) <= 0:
        raise VitreousError(f"--budget {text}: give a time such as 90s, 30m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def scale_at(study: Study, level: int, data: str, upstream: str, seeds: int | None) -> Scale:
    """`upstream`: pre-trained on instead of the study's own, where it has one."""
    width, depth, images = LEVELS[level]
    size = _image_size(data, level)
    # Rendered scenes need 16 pixels; for smaller models they are reduced.
    count = min(64_000, max(1_000, images)) if level else 256
    upstream = upstream or study.upstream.format(size=max(16, size), count=count)
    return Scale(level, data, upstream, size, images, width, depth, seeds, channels=_channels(upstream or data))


def _image_size(data: str, level: int) -> int:
    """Small images keep their own size, to a multiple of four; photographs become small enough for small models."""
    content = _first(data)
    side = None if isinstance(content, bytes) else min(content.shape[:2])
    if side is None or side > 64:
        return 32 if level <= 4 else 64
    return max(8, side // 4 * 4)


def _channels(data: str) -> int:
    content = _first(data)
    return 1 if not isinstance(content, bytes) and content.ndim == 2 else 3


def _first(data: str) -> Content:
    source = next(iter(open_data(data).splits.values()))
    assert isinstance(source, Source)
    return source.read(0)


def choose_scale(study: Study, data: str, upstream: str, budget: float, seeds: int | None, device: str) -> tuple[Scale, float]:
    """The largest scale that fits, and the seconds it will take here. Fewer seeds than claims need where nothing else fits."""
    speeds: dict[str, float] = {}
    found: tuple[Scale, float] | None = None
    # Upwards, so that models far too large for the budget are not timed.
    for level in range(1, len(LEVELS)):
        scale = scale_at(study, level, data, upstream, seeds)
        needed = predict_seconds(study.cells(scale), device, speeds)
        if needed > budget:
            break
        found = scale, needed
    for fewer in (5, 4, 3, 2) if found is None and seeds is None else ():
        scale = scale_at(study, 1, data, upstream, fewer)
        needed = predict_seconds(study.cells(scale), device, speeds)
        if needed <= budget:
            return scale, needed
    if found is not None:
        return found
    least = "two seeds" if seeds is None else f"{seeds} seeds"
    raise VitreousError(
        f"--budget: {study.name} takes about {describe_seconds(needed)} here with {least} and the smallest models; "
        f"give more time, or choose another study"
    )


def predict_seconds(cells: tuple[Cell, ...], device: str, speeds: dict[str, float]) -> float:
    """By trial steps on random pixels; `speeds` remembers the seconds per image of each model. Shared runs count once."""
    total, seen = 0.0, set()
    for cell in cells:
        config: ModelConfig | None = None
        for number, stage in enumerate(cell.stages):
            config = _config(stage, config)
            run = repr(cell.stages[: number + 1])
            if run not in seen:
                seen.add(run)
                per_image = _seconds_per_image(config, int(stage.options["batch_size"]), device, speeds)
                images = int(stage.options["steps"]) * int(stage.options["batch_size"])
                total += _OVERHEAD + images * (per_image + _LOADING)
    return total


def _config(stage: Stage, before: ModelConfig | None) -> ModelConfig:
    if "model" not in stage.options:
        assert before is not None
        return before
    fields: Mapping[str, Any] = model_fields(tuple(f"{name}={value}" for name, value in stage.set.items()))
    return parse_name(stage.options["model"], image_size=stage.options["image_size"], classes=10, **fields)


def _seconds_per_image(config: ModelConfig, batch: int, device: str, speeds: dict[str, float]) -> float:
    key = repr(config)
    if key not in speeds:
        model = allocate_parameters(build_on_meta(config)).train()
        model.initialise()
        model.to(device)
        images = torch.rand(batch, config.channels, *config.image_size, device=device)
        times = []
        for _ in range(4):
            began = time.perf_counter()
            model(images).sum().backward()
            if device != "cpu":
                torch.accelerator.synchronize()
            times.append(time.perf_counter() - began)
        speeds[key] = min(times[1:]) / batch
    return speeds[key]
