"""The options of `vitreous vtab`, and the suite with its settings that they choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

from vitreous.classifier import read_checkpoint
from vitreous.core.errors import VitreousError
from vitreous.core.fields import Between, check_fields
from vitreous.core.files import user_path
from vitreous.core.output_dir import check_outside, find_data_folder
from vitreous.inference.engines.engine import EngineOption, check_engine
from vitreous.studies.suite import Suite, read_suite
from vitreous.studies.vtab import vtab_suite
from vitreous.training.options import option_name
from vitreous.training.recipes.recipe import parse_set, parse_value

Mode: TypeAlias = Literal["finetune", "linear"]

# Of the recipe's fields: what the suite itself decides for each task, and why it is not to be set for all.
_NOT_SET = {
    "preprocess": "follows from each task's crop and flip",
    "evaluation": "is the suite's: straight to --image-size, without a crop",
    "patience": "would choose by the test images",
    "epochs": "would differ from task to task; use --steps",
    "sweep": "is given in the suite's file, as sweep_lr",
    "sweep_share": "is a fifth of the examples",
}
_PROTOCOL = ("lr", "warmup", "steps", "batch_size", "image_size")  # recipe's fields that the suite's protocol has


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    checkpoint: str
    data: str = ""  # VTAB's folder
    suite: str = ""
    tasks: str = ""
    out: str
    mode: Mode = "finetune"
    seeds: Annotated[int | None, Between(1)] = None
    sweep: bool = False
    image_size: tuple[int, int] | None = None
    steps: Annotated[int | None, Between(1)] = None
    batch_size: Annotated[int | None, Between(1)] = None
    set: tuple[str, ...] = ()
    keep_weights: bool = False
    workers: Annotated[int | None, Between(0)] = None
    device: str = "cpu"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    engine: EngineOption = "torch"
    seed: Annotated[int, Between(0)] = 0  # the first
    data_seed: Annotated[int, Between(0)] = 0  # of splits and examples

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"{option_name(name)} {value}:")
        if self.mode == "linear":
            for name in ("seeds", "sweep", "steps", "set", "keep_weights", "seed"):
                if getattr(self, name):
                    raise VitreousError(
                        f"{option_name(name)} is for --mode finetune: closed form takes no steps and draws nothing at random"
                    )
        elif self.engine not in ("torch", "eager"):
            raise VitreousError(f"--engine {self.engine} is for --mode linear: fine-tuning computes in torch")
        check_engine(self.engine)
        changes = parse_set(self.set)
        for name, text in changes.items():
            if name in _NOT_SET:
                raise VitreousError(f"--set {name}={text}: {_NOT_SET[name]}")
            if not name.startswith("model."):
                parse_value(name, text)  # a typo is an error now, not after the first task's data is read
        if self.sweep and "lr" in changes:
            lr = changes["lr"]
            raise VitreousError(f"--sweep chooses the learning rate, and --set lr={lr} gives it; leave one of them out")

    @property
    def changes(self) -> dict[str, str]:
        """To the recipe, beside what the protocol has."""
        return {name: value for name, value in parse_set(self.set).items() if name not in _PROTOCOL}


def choose_suite(options: SuiteOptions) -> Suite:
    """The suite and its tasks, with the settings that are given in the place of its own; no data is read yet."""
    check_outside(user_path(options.out), find_data_folder(options.data))
    suite = _find_suite(options)
    given = {name: parse_value(name, text) for name, text in parse_set(options.set).items() if name in _PROTOCOL}
    if "image_size" in given:
        given["image_size"] = (int(given["image_size"]),) * 2
    size = options.image_size
    if options.mode == "linear" and size is None and not options.suite:  # the size that the features were made for
        size = read_checkpoint(options.checkpoint).evaluation_size
    batch_size = None if options.mode == "linear" else options.batch_size
    asked: dict[str, Any] = {"steps": options.steps, "image_size": size, "batch_size": batch_size, "seeds": options.seeds}
    for name, value in asked.items():
        if value is not None and name in given:
            raise VitreousError(f"{option_name(name)} and --set {name}={given[name]} say the same; give one of them")
    try:
        protocol = suite.protocol.at(**{**asked, **given})
    except VitreousError as error:
        raise VitreousError(f"these settings do not fit together: {error}") from None
    return replace(suite, protocol=protocol)


def _find_suite(options: SuiteOptions) -> Suite:
    data, tasks = options.data, tuple(word.strip() for word in options.tasks.split(",") if word.strip())
    if options.suite:
        if data:
            raise VitreousError(f"{data}: a suite names its own data; leave DATA out, or --suite {options.suite}")
        found = read_suite(options.suite)
        return found.only(tasks) if tasks else found
    if not data:
        raise VitreousError("DATA is missing: the folder that holds VTAB's task folders; or name a suite, as --suite small")
    if not user_path(data).is_dir():
        raise VitreousError(f"{data}: no such folder; DATA holds VTAB's task folders, as caltech101/ (see docs/how-to/vtab.md)")
    return vtab_suite(data, tasks)
