"""A run before it begins: everything decided, nothing done. `config` is what `config.json` will say of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.data.source import Policy, Source, Stream
from vitreous.data.transforms.decode import BadImage
from vitreous.models.config import ModelConfig
from vitreous.models.config import config_to_json as model_json
from vitreous.training.options import Command, Engine, Parallel
from vitreous.training.recipes.recipe import Recipe
from vitreous.training.recipes.recipe import to_json as recipe_json
from vitreous.weights.checkpoint import Checkpoint


@dataclass(frozen=True, eq=False)
class RunConfig:
    command: Command
    out: Path
    recipe: Recipe  # fitted to the data: `steps` is set
    model: ModelConfig
    start: Mapping[str, Tensor] | None  # weights to begin with; None: drawn by the seed
    parent: Mapping[str, Any]  # where those come from
    licence: str | None
    train: Source | Stream
    held_out: Source | Stream | None  # to judge by
    data: Mapping[str, Any]  # what it is, and a fingerprint that changes with it
    classes: tuple[str, ...]
    images: int | None  # in `train`, where it is known
    seed: int = 0
    data_seed: int = 0  # of splits and subsets
    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    engine: Engine = "eager"
    micro_batch: int | None = None  # images per pass and process; None: all at once
    threads: int | None = None  # None: torch's own number
    parallel: Parallel = "ddp"
    shard_group: int | None = None
    activation_checkpointing: bool = False
    bad_images: Policy = "stop"
    eval_every: int = 0  # steps; 0: at the end only
    save_every: int | None = None  # steps; None: every few minutes
    workers: int | None = None
    track: tuple[str, ...] = ()
    extend: bool = False
    decisions: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the verb, as they were typed
    begun: Checkpoint | None = None  # the checkpoint that it begins from, at its new size
    bad: tuple[BadImage, ...] = ()  # images that were found unreadable and left out

    @property
    def steps(self) -> int:
        assert self.recipe.steps is not None
        return self.recipe.steps


def _decoders() -> dict[str, str | None]:
    """What turns files into pixels: another version may give another shade."""
    found: dict[str, str | None] = {"pillow": version("pillow"), "simplejpeg": None}
    with contextlib.suppress(PackageNotFoundError):
        found["simplejpeg"] = version("simplejpeg")
    return found


def config_json(plan: RunConfig, processes: int) -> dict[str, Any]:
    return {
        "verb": plan.command,
        "data": dict(plan.data),
        "from": dict(plan.parent),
        "model": model_json(plan.model),
        "recipe": recipe_json(plan.recipe),
        "seed": plan.seed,
        "data_seed": plan.data_seed,
        "device": plan.device,
        "precision": plan.precision,
        "engine": plan.engine,
        "micro_batch": plan.micro_batch,
        "parallel": plan.parallel,
        "shard_group": plan.shard_group,
        "activation_checkpointing": plan.activation_checkpointing,
        "bad_images": plan.bad_images,
        "eval_every": plan.eval_every,
        "workers": plan.workers,
        "save_every": plan.save_every,
        "track": list(plan.track),
        "processes": processes,
        "threads": plan.threads or torch.get_num_threads(),
        "versions": {"vitreous": version("vitreous"), "torch": torch.__version__, **_decoders()},
        "extended": plan.extend,
        "decisions": list(plan.decisions),
        "arguments": dict(plan.arguments),
    }
