"""A run before it begins, everything decided and nothing done (`RunConfig`), and its record in config.json (`RunRecord`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from vitreous.classifier import describe_parent
from vitreous.core.fields import Between, check_fields
from vitreous.data.source import Source, Stream
from vitreous.data.transforms.decode import BadImage
from vitreous.evaluation.fewshot_tasks import TaskImages
from vitreous.models.config import ModelConfig
from vitreous.models.config import config_to_json as model_json
from vitreous.models.cost import compute_cost
from vitreous.training.options import TrainOptions
from vitreous.training.recipes.recipe import Recipe
from vitreous.training.recipes.recipe import to_json as recipe_json
from vitreous.weights.checkpoint import Checkpoint

VERSION = 2  # of config.json
EVALUATIONS = 10  # in a run, where --eval-every does not say


@dataclass(frozen=True)
class RunRecord:
    """What a run that is resumed or replayed takes from its config.json: what was measured then decides rounding now."""

    command: str
    options: dict[str, Any]
    recipe: dict[str, Any]
    data: dict[str, Any]
    model: dict[str, Any]
    precision: Literal["float32", "bfloat16"]
    eval_every: Annotated[int, Between(0)]
    micro_batch: Annotated[int | None, Between(1)]
    world_size: Annotated[int, Between(1)]
    threads: Annotated[int, Between(1)]
    extended: bool
    settings: dict[str, Any]  # the whole file

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"{name}={value}")


class Previous(NamedTuple):
    """The records of earlier runs: the one in OUT, which is resumed, and that of --config, which is replayed."""

    resumed: RunRecord | None = None
    replayed: RunRecord | None = None


@dataclass(frozen=True, eq=False)
class RunConfig:
    options: TrainOptions  # as they were typed; below: what they are resolved to
    out: Path
    recipe: Recipe  # fitted to the data: `steps` is set
    model: ModelConfig
    start: Mapping[str, Tensor] | None  # weights to begin with; None: drawn by the seed
    parent: Mapping[str, Any]  # where those come from
    licence: str | None
    train: Source | Stream
    held_out: Source | Stream | None  # to validate on
    test: Source | Stream | None  # to evaluate the result on, once
    data: Mapping[str, Any]  # what it is, and a fingerprint that changes with it
    classes: tuple[str, ...]
    images: int | None  # in `train`, where it is known
    fewshot: TaskImages | None = None  # to evaluate frozen features on, along the run
    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    micro_batch: int | None = None  # images per pass and process; None: all at once
    threads: int | None = None  # None: torch's own number
    eval_every: int = 0  # steps; 0: at the end only
    decisions: tuple[str, ...] = ()
    teacher: Checkpoint | None = None  # whose predictions are learnt, too
    begun: Checkpoint | None = None  # the checkpoint that it begins from, at its new size
    bad: tuple[BadImage, ...] = ()  # images that were found unreadable and left out

    @property
    def steps(self) -> int:
        assert self.recipe.steps is not None
        return self.recipe.steps

    def flops(self, steps: int) -> int:
        """Floating-point operations of training for so many steps, at the size of the training images."""
        return compute_cost(self.model).training_flops(steps * self.recipe.batch_size)


def _decoders() -> dict[str, str | None]:
    """What turns files into pixels: another version may give another shade."""
    found: dict[str, str | None] = {"pillow": version("pillow"), "simplejpeg": None}
    with contextlib.suppress(PackageNotFoundError):
        found["simplejpeg"] = version("simplejpeg")
    return found


# Options that are recorded as what they were resolved to. All others are recorded as they are, and must stay equal
# between two starts of a run unless `run_folder.FREE` names them.
_RESOLVED = {
    "data", "out", "from_", "model", "objective", "train", "teacher", "sweep", "sweep_share", "recipe", "set",
    "config", "steps", "epochs", "flops", "minutes", "batch_size", "image_size", "preprocess", "eval_every", "device",
    "precision", "micro_batch", "subset", "per_class", "held_out", "extend",
}  # fmt: skip


def _describe_teacher(config: RunConfig) -> dict[str, Any] | None:
    if config.teacher is None or config.options.teacher is None:
        return None
    found = describe_parent(config.options.teacher, config.teacher)
    return {name: found[name] for name in ("source", "sha256")}


def config_json(config: RunConfig, world_size: int) -> dict[str, Any]:
    """What config.json says of a run."""
    return {
        "version": VERSION,
        **{name: value for name, value in vars(config.options).items() if name not in _RESOLVED},
        "data": dict(config.data),
        "from": dict(config.parent),
        "teacher": _describe_teacher(config),
        "model": model_json(config.model),
        "recipe": recipe_json(config.recipe),
        "device": config.device,
        "precision": config.precision,
        "micro_batch": config.micro_batch,
        "eval_every": config.eval_every,
        "world_size": world_size,
        "threads": config.threads or torch.get_num_threads(),
        "versions": {"vitreous": version("vitreous"), "torch": torch.__version__, **_decoders()},
        "extended": config.options.extend,
        "decisions": list(config.decisions),
        "options": config.options.to_json(),
    }
