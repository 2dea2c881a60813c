"""From what is typed, given in Python or recorded in a config.json to checked `TrainOptions`, before anything is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitreous.core.device import choose_device
from vitreous.core.errors import VitreousError
from vitreous.core.fields import check_names, check_value, field_types, parse_text, split_annotated
from vitreous.core.files import user_path
from vitreous.core.output_dir import check_outside, find_data_folder
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.fewshot import parse_shots
from vitreous.models.config import AxialResNetConfig, ResNetConfig, ViTConfig
from vitreous.models.names import check_name
from vitreous.training.config import Previous, RunRecord
from vitreous.training.options import Command, ObjectiveName, TrainOptions, option_name
from vitreous.training.recipes import tables
from vitreous.training.recipes.recipe import parse_set, parse_value
from vitreous.training.run_folder import CONFIG, read_config, recorded_config
from vitreous.training.trackers import parse_trackers
from vitreous.weights.locate import check_source

# Options that a recipe has as fields, so that `--set` could give them too.
_ALSO_FIELDS = {"steps", "epochs", "batch_size", "image_size", "preprocess", "train"}

# How long to train: given by hand, one of each group takes the place of the others in a config that is replayed.
_LENGTHS = ("steps", "epochs", "flops", "minutes")
_ALTERNATIVES = (_LENGTHS, ("subset", "per_class"), ("from_", "model"), ("recipe", "objective"))


def build_options(command: Command, given: Mapping[str, Any]) -> tuple[TrainOptions, Previous]:
    """The options, and the records of earlier runs; what is given here overrides what is replayed."""
    given = _as_typed(given)
    typed_changes = parse_set(given.get("set", ()))
    for name in sorted(_ALSO_FIELDS & given.keys() & typed_changes.keys()):
        raise VitreousError(
            f"{option_name(name)} and --set {name}={typed_changes[name]} both give {name}; leave one of them out"
        )
    replayed: RunRecord | None = None
    if path := given.get("config"):
        file = user_path(path)
        replayed = read_config(file / CONFIG if file.is_dir() else file, "--config takes a run's folder or its config.json")
        if replayed.command != command:
            raise VitreousError(f"--config {path}: is of `vitreous {replayed.command}`, not of `vitreous {command}`")
        recorded = _as_typed(replayed.options)
        before = parse_set(recorded.pop("set", ()))
        by_hand = {*given, *typed_changes}
        dropped = (_ALSO_FIELDS & by_hand) | {"out", "config", "extend"}
        dropped |= {name for group in _ALTERNATIVES for name in group if by_hand & {*group} - {name}}
        changes = {name: value for name, value in before.items() if name not in dropped} | typed_changes
        given = {**{name: value for name, value in recorded.items() if name not in dropped}, **given}
        given["set"] = tuple(f"{field}={value}" for field, value in changes.items())
    if given.get("from_") == "scratch":
        given["from_"] = None
    if command == "pretrain" and not given.get("model"):
        given["model"] = "auto"
    options = TrainOptions(command, **{**given, "objective": _objective(given)})
    _check(options)
    return options, Previous(recorded_config(user_path(options.out)), replayed)


def _check(options: TrainOptions) -> None:
    """What types and ranges do not tell: options that go together, and names that must exist."""
    for name, what in (("data", "DATA"), ("out", "--out")):
        if not getattr(options, name):
            raise VitreousError(f"{what} is missing; for example: vitreous {options.command} photos/ --out runs/photos")
    if options.subset is not None and options.per_class is not None:
        raise VitreousError("--subset and --per-class both choose images; give one of them")
    changes = recipe_changes(options.set)
    lengths = [f"{option_name(name)} {value:g}" for name in _LENGTHS if (value := getattr(options, name)) is not None]
    lengths += [f"--set {name}={changes[name]:g}" for name in _LENGTHS if changes.get(name) is not None]
    if len(lengths) > 1:
        raise VitreousError(f"{' and '.join(lengths)} contradict each other; give one of them")
    if options.sweep and options.minutes is not None:
        raise VitreousError(
            f"--sweep and --minutes {options.minutes:g}: trials must be of the run's length; give --flops or --steps"
        )
    if options.shots is not None and options.fewshot is None:
        raise VitreousError(f"--shots {options.shots}: is for --fewshot DATA, which is missing")
    parse_shots(options.shots)
    for name in ("teacher_weight", "teacher_temperature"):
        if name in changes and options.teacher is None:
            raise VitreousError(f"--set {name}={changes[name]:g}: is for --teacher CHECKPOINT, which is missing")
    if options.teacher is not None:
        check_source(options.teacher)
        if options.objective != "classification":
            raise VitreousError(f"--teacher names classes, and --objective {options.objective} learns none; leave it out")
    size = options.micro_batch
    if size not in (None, "auto") and not (size.isdecimal() and int(size) > 0):
        raise VitreousError(f"--micro-batch {size}: give a number of images, at least 1, or auto")
    for data in filter(None, (options.data, options.fewshot)):
        check_outside(user_path(options.out), find_data_folder(data))
    choose_device(options.device)
    parse_trackers(options.track)
    for string in (options.preprocess, changes.get("preprocess"), changes.get("evaluation")):
        if string is not None:
            Preprocess(string)
    _check_model(options)


def _check_model(options: TrainOptions) -> None:
    """The name of a model and its fields, or that of the weights."""
    if options.from_ is not None:
        if options.model is not None:
            raise VitreousError(
                f"--model {options.model} begins from scratch and --from {options.from_} from weights; give one of them"
            )
        check_source(options.from_)
        return
    if options.train in ("head", "lora"):
        raise VitreousError(f"--train {options.train}: a model from scratch has only random features; give --from CHECKPOINT")
    if options.model is None:
        raise VitreousError("say what to train: --model auto or ViT-B/16 from scratch, or --from CHECKPOINT")
    overrides = model_fields(options.set)
    for name in ("classes", "image_size"):
        if name in overrides:
            raise VitreousError(f"--set model.{name}={overrides[name]}: is decided by the data, and the size by --image-size")
    if options.model != "auto":
        check_name(options.model, options.image_size, **overrides)


def recipe_changes(changes: Iterable[str]) -> dict[str, Any]:
    """Fields of the recipe from --set NAME=VALUE, each of its type and within its range."""
    typed = parse_set(changes).items()
    return {name: parse_value(name, text) for name, text in typed if not name.startswith("model.")}


def model_fields(changes: Iterable[str]) -> dict[str, Any]:
    """Fields of the model's config from --set model.NAME=VALUE; the config itself checks name, type and range."""
    hints = {**field_types(ResNetConfig), **field_types(AxialResNetConfig), **field_types(ViTConfig)}
    typed = {name.removeprefix("model."): text for name, text in parse_set(changes).items() if name.startswith("model.")}
    return {name: parse_text(hints.get(name.removeprefix("trunk_"), str), text) for name, text in typed.items()}


def _as_typed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the command line would give them, from Python or a config; checked for name, type and range."""
    check_names({name: None for name in given if name != "command"}, TrainOptions, "option")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None and value != "":
            hint = field_types(TrainOptions)[name]
            found[name] = _convert(name, split_annotated(hint)[0], value)
            check_value(hint, found[name], name, lambda name, shown: f"{option_name(name)} {shown}:")
    return found


def _convert(name: str, hint: Any, value: Any) -> Any:
    """Paths as text, 8 or [8, 8] for a size, a dict or one text for `set`, 2 for 2.0 epochs."""
    if isinstance(value, Path) or (name == "micro_batch" and type(value) is int):
        return str(value)
    if name == "shots":
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    if name == "image_size" and isinstance(value, int):
        return value, value
    if name == "set" and isinstance(value, Mapping):
        return tuple(f"{field}={inner}" for field, inner in value.items())
    if name == "set" and isinstance(value, str):
        return (value,)
    if hint == float | None and type(value) is int:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _objective(given: Mapping[str, Any]) -> ObjectiveName:
    """What is learnt: as set, or what a recipe that was named is for."""
    asked: ObjectiveName | None = given.get("objective")
    of_recipe = tables.find_recipe(given["recipe"]).objective if given.get("recipe") else None
    if asked and of_recipe and asked != of_recipe:
        raise VitreousError(
            f"recipe {given['recipe']} is for {of_recipe}, not for --objective {asked}; leave one of them out, "
            f"or choose another of `vitreous list recipes`"
        )
    return asked or of_recipe or "classification"
