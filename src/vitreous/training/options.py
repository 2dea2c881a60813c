"""What somebody asks for: the options of `pretrain` and `finetune`, as typed. `prepare` makes a plan of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vitreous.core.device import choose_device
from vitreous.core.errors import VitreousError, unknown_name
from vitreous.core.files import user_path
from vitreous.core.output_dir import check_outside, find_data_folder
from vitreous.data.source import Policy
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.names import check_name
from vitreous.training.config import Engine
from vitreous.training.parallel import Parallel
from vitreous.training.recipes import tables
from vitreous.training.recipes.recipe import Objective, parse_set, parse_value
from vitreous.training.run_folder import CONFIG, read_config
from vitreous.training.trackers import installed, parse_trackers
from vitreous.weights.locate import check_source

# Options that a recipe has as fields, so that `--set` could give them too.
_ALSO_FIELDS = {"steps", "epochs", "batch_size", "image_size", "preprocess", "train"}

# Given by hand, the first takes the place of the second in a config that is replayed.
_INSTEAD_OF = {
    "steps": "epochs", "epochs": "steps", "subset": "per_class", "per_class": "subset", "from_": "model", "model": "from_",
    "recipe": "objective", "objective": "recipe",
}  # fmt: skip


@dataclass(frozen=True)
class TrainOptions:
    verb: Literal["pretrain", "finetune"]
    data: str = ""
    out: str = ""
    model: str | None = None  # a name: begin from scratch
    from_: str | None = None  # a checkpoint: begin with its weights
    objective: Objective = "classification"
    recipe: str | None = None
    set: tuple[str, ...] = ()
    config: str | None = None
    seed: int = 0
    data_seed: int = 0  # of splits and subsets, which other seeds are compared on
    steps: int | None = None
    epochs: float | None = None
    batch_size: int | None = None
    image_size: tuple[int, int] | None = None
    preprocess: str | None = None
    save_every: int | None = None
    eval_every: int | None = None
    workers: int | None = None
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    engine: Engine = "eager"
    micro_batch: str | int | None = None
    parallel: Parallel = "ddp"
    shard_group: int | None = None
    activation_checkpointing: bool = False
    bad_images: Policy = "stop"
    subset: int | None = None
    per_class: int | None = None
    held_out: float | None = None
    train: Literal["all", "head"] | None = None  # None: as the recipe has it
    sweep: bool = False
    sweep_share: float | None = None  # of a trial: judge by this share of what the run itself trains on
    track: str = ""
    extend: bool = False


def parse_options(
    verb: Literal["pretrain", "finetune"], given: Mapping[str, Any]
) -> tuple[TrainOptions, dict[str, Any] | None]:
    """What was asked for, and the config that is replayed, if any: what is given by hand goes before what stands there."""
    given = _plain(given)
    typed_changes = parse_set(given.get("set", ()))
    for name in sorted(_ALSO_FIELDS & given.keys() & typed_changes.keys()):
        raise VitreousError(f"{_option(name)} and --set {name}={typed_changes[name]} both give {name}; leave one of them out")
    replayed: dict[str, Any] | None = None
    if path := given.get("config"):
        place = user_path(path)
        replayed = read_config(place / CONFIG if place.is_dir() else place, "check --config")
        if replayed.get("verb") != verb:
            raise VitreousError(f"--config {path}: is of `vitreous {replayed.get('verb')}`, not of `vitreous {verb}`")
        recorded = {"data_seed": replayed["data_seed"], **_plain(replayed["arguments"])}
        before = parse_set(recorded.pop("set", ()))
        by_hand = {*given, *typed_changes}
        dropped = (_ALSO_FIELDS & by_hand) | {_INSTEAD_OF.get(name) for name in by_hand} | {"out", "config", "extend"}
        changes = {name: value for name, value in before.items() if name not in dropped} | typed_changes
        given = {**{name: value for name, value in recorded.items() if name not in dropped}, **given}
        given["set"] = tuple(f"{field}={value}" for field, value in changes.items())
    if verb == "pretrain" and not given.get("model"):
        given = {**given, "model": "ViT-B/16"}
    asked = TrainOptions(verb, **{**given, "objective": _objective(given)})
    for name, what in (("data", "DATA"), ("out", "--out")):
        if not getattr(asked, name):
            raise VitreousError(f"{what} is missing; for example: vitreous {verb} photos/ --out runs/photos")
    for name in ("steps", "batch_size", "save_every", "subset", "per_class", "shard_group"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise VitreousError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    if asked.epochs is not None and not 0 < asked.epochs < 1e9:
        raise VitreousError(f"--epochs {asked.epochs:g}: must be more than 0, and finite")
    if asked.workers is not None and asked.workers < 0:
        raise VitreousError(f"--workers {asked.workers}: must be 0 (none) or more")
    if asked.eval_every is not None and asked.eval_every < 0:
        raise VitreousError(f"--eval-every {asked.eval_every}: must be a number of steps, or 0 for the end only")
    for name in ("seed", "data_seed"):
        if getattr(asked, name) < 0:
            raise VitreousError(f"{_option(name)} {getattr(asked, name)}: must be 0 or more")
    if asked.held_out is not None and not 0 < asked.held_out < 1:
        raise VitreousError(f"--held-out {asked.held_out:g}: must be a share of the training images, as 0.1")
    if asked.subset is not None and asked.per_class is not None:
        raise VitreousError("--subset and --per-class both choose images; give one of them")
    if asked.micro_batch not in (None, "auto") and not (str(asked.micro_batch).isdecimal() and int(asked.micro_batch) > 0):
        raise VitreousError(f"--micro-batch {asked.micro_batch}: give a number of images, at least 1, or auto")
    check_outside(user_path(asked.out), find_data_folder(asked.data))
    choose_device(asked.device)
    installed(parse_trackers(asked.track))
    _check_recipe(asked)
    _check_model(asked)
    return asked, replayed


def _check_recipe(asked: TrainOptions) -> None:
    """Fields of --set and preprocessing strings, by themselves: whether they go together depends on the recipe."""
    changes = {name: parse_value(name, text) for name, text in parse_set(asked.set).items() if not name.startswith("model.")}
    for string in (asked.preprocess, changes.get("preprocess"), changes.get("evaluation")):
        if string is not None:
            Preprocess(string)


def _check_model(asked: TrainOptions) -> None:
    """The name of a model and its fields, or that of the weights."""
    if asked.from_ is not None:
        if asked.model is not None:
            raise VitreousError(
                f"--model {asked.model} begins from scratch and --from {asked.from_} from weights; give one of them"
            )
        check_source(asked.from_)
        return
    if asked.train == "head":
        raise VitreousError("--train head: a head on a model from scratch learns from random features; give --from CHECKPOINT")
    if asked.model is None:
        raise VitreousError("say what to train: --model ViT-B/16 from scratch, or --from CHECKPOINT")
    overrides = model_fields(asked.set)
    for name in ("classes", "image_size"):
        if name in overrides:
            raise VitreousError(f"--set model.{name}={overrides[name]}: is decided by the data, and the size by --image-size")
    check_name(asked.model, asked.image_size, **overrides)


def model_fields(changes: Iterable[str]) -> dict[str, Any]:
    """Fields of the model's config from --set model.NAME=VALUE; the config itself checks name, type and range."""
    words = parse_set(changes).items()
    return {name.removeprefix("model."): _model_field(text) for name, text in words if name.startswith("model.")}


def _model_field(text: str) -> Any:
    words = {"yes": True, "true": True, "no": False, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    parts = text.replace("x", ",").split(",")
    return tuple(map(int, parts)) if len(parts) > 1 and all(part.isdecimal() for part in parts) else text


def _option(name: str) -> str:
    return "--" + name.strip("_").replace("_", "-")


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the command line would give them, from what Python or a config says; what no option can be is refused."""
    hints = get_type_hints(TrainOptions)
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in hints or name == "verb":
            raise unknown_name("option", name, hints.keys() - {"verb"})
        if value is None and name != "from_":
            continue
        value = _as_typed_by_hand(name, value)
        if not _fits(value, hints[name]):
            choices = [choice for choice in get_args(hints[name]) if isinstance(choice, str)]
            if choices and isinstance(value, str):
                raise unknown_name(_option(name), value, choices)
            raise VitreousError(f"{_option(name)} {value!r}: must be {_kind(hints[name])}")
        found[name] = value
    return found


def _as_typed_by_hand(name: str, value: Any) -> Any:
    """Paths as text, 8 or [8, 8] for a size, a dict or one text for `set`, 2 for 2.0 epochs."""
    if isinstance(value, Path):
        return str(value)
    if name == "image_size":
        return (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, list) else value
    if name == "set":
        if isinstance(value, Mapping):
            return tuple(f"{field}={inner}" for field, inner in value.items())
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    return float(value) if name in ("epochs", "held_out") and type(value) is int else value


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type of `Wanted`: plain ones, choices, tuples of plain ones, and either of several."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        right = isinstance(value, tuple) and (kinds[-1] is Ellipsis or len(value) == len(kinds))
        return right and all(_fits(inner, kinds[0]) for inner in value)
    return isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)


def _kind(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    kinds = [choice for choice in (get_args(hint) or (hint,)) if choice is not type(None)]
    return " or ".join(names.get(kind, "height and width" if get_origin(kind) is tuple else "text") for kind in kinds)


def _objective(given: Mapping[str, Any]) -> Objective:
    """What is learnt: as asked, or what a recipe that was named is for."""
    asked: Objective | None = given.get("objective")
    of_recipe = tables.find_recipe(given["recipe"]).objective if given.get("recipe") else None
    if asked and of_recipe and asked != of_recipe:
        remedy = "; for masked patches there is jft-masked-patch" if asked == "masked-patch" else ""
        raise VitreousError(
            f"recipe {given['recipe']} is for {of_recipe}, not for --objective {asked}; leave one of them out{remedy}"
        )
    return asked or of_recipe or "classification"


def options_to_json(asked: TrainOptions) -> dict[str, Any]:
    """What differs from the defaults; replaying it asks for the same."""
    defaults = {field.name: field.default for field in dataclasses.fields(TrainOptions)}
    own = {name: value for name, value in vars(asked).items() if name not in ("verb", "config", "extend")}
    return {name: value for name, value in own.items() if value != defaults[name]}
