"""A recipe: how to train, in one frozen dataclass. Any field can be changed with `--set field=value`."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from vitreous.core.errors import VitreousError, unknown_name
from vitreous.data.transforms.mixup import check_mixup
from vitreous.data.transforms.parse import Preprocess

Objective = Literal["classification", "masked-patch"]
Loss = Literal["softmax", "sigmoid"]
MaskTarget = Literal["mean", "downsized", "pixels"]
Optimizer = Literal["adam", "sgd"]
Schedule = Literal["linear", "cosine", "staircase", "constant"]


@dataclass(frozen=True)
class Recipe:
    name: str = "custom"
    about: str = ""  # where it comes from, and what it is for

    # What is learnt.
    objective: Objective = "classification"
    loss: Loss = "softmax"
    smoothing: float = 0.0  # sigmoid: targets are 1 - s and s (the paper's 1e-4); softmax: s is spread over all classes
    head_bias: float = 0.0  # -10 in pre-training: at first, every class is unlikely
    representation: bool = False  # a tanh layer before the head, which fine-tuning drops
    class_weights: Literal["none", "balanced"] = "none"  # balanced: every class counts alike, however many images it has
    mask_share: float = 0.5  # of patches, corrupted
    mask_target: MaskTarget = "mean"

    # How long, and in what steps. Exactly one of steps and epochs is given.
    batch_size: int = 512
    steps: int | None = None
    epochs: float | None = None
    warmup: int = 0  # steps

    # The optimiser.
    optimizer: Optimizer = "sgd"
    lr: float = 0.01
    schedule: Schedule = "cosine"
    lr_end: float = 0.0
    milestones: tuple[float, ...] = ()  # staircase: shares of the run after which the rate is divided by ten
    beta1: float = 0.9
    beta2: float = 0.999
    momentum: float = 0.9
    weight_decay: float = 0.0  # adam: decoupled, every step takes lr * weight_decay of each weight; sgd: joins the gradient
    decay: Literal["all", "kernels"] = "all"  # kernels: biases, norms, tokens and position embeddings are spared
    clip: float | None = None  # the gradient's largest norm
    layer_decay: float = 1.0  # each layer learns this many times as fast as the one above it
    train: Literal["all", "head"] = "all"  # head: a linear probe
    average: float = 0.0  # Polyak: the share of the old average that a step keeps, 0.9999 in table 2

    # Against overfitting.
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    mixup: float = 0.0
    patience: int | None = None  # stop after so many evaluations without a better one

    # Pictures: strings for this size, which follow another size in proportion.
    image_size: int | None = None  # None: the pictures' own, or the checkpoint's
    preprocess: str = "inception_crop(224)|flip|range(-1,1)"
    evaluation: str = "resize(224)|range(-1,1)"

    # The learning rates that `--sweep` tries, and how much of the training set it judges them by.
    sweep: tuple[float, ...] = ()
    sweep_share: float = 0.1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_field(f"recipe {self.name}:", field.name, getattr(self, field.name))
        if (self.steps is None) == (self.epochs is None):
            raise VitreousError(
                f"recipe {self.name}: give steps or epochs, one of them (steps={self.steps}, epochs={self.epochs})"
            )
        check_mixup(self.mixup)
        if any(rate <= 0 for rate in self.sweep):
            raise VitreousError(f"recipe {self.name}: sweep={self.sweep} must be learning rates above 0, as 0.003:0.01:0.03")
        if self.lr_end > self.lr:
            raise VitreousError(f"recipe {self.name}: lr_end={self.lr_end:g} is above lr={self.lr:g}; add lr_end=0")
        if list(self.milestones) != sorted(self.milestones) or not all(0 < m < 1 for m in self.milestones):
            raise VitreousError(
                f"recipe {self.name}: milestones={self.milestones} must be rising shares of the run, as 0.3:0.6:0.9"
            )
        if self.schedule == "staircase" and not self.milestones:
            raise VitreousError(f"recipe {self.name}: a staircase needs milestones, as milestones=0.3:0.6:0.9")
        if self.objective == "masked-patch" and any(
            (self.mixup, self.smoothing, self.head_bias, self.representation, self.class_weights != "none", self.train != "all")
        ):
            raise VitreousError(
                f"recipe {self.name}: mixup, smoothing, head_bias, representation, class_weights and train=head are for "
                f"classification, not for masked-patch"
            )
        if Preprocess(self.evaluation).random:
            raise VitreousError(f"recipe {self.name}: evaluation={self.evaluation!r} goes by chance; it must be a fixed string")
        Preprocess(self.preprocess)


_LIMITS = (
    ("smoothing", 0, 0.999), ("mask_share", 0.001, 1), ("batch_size", 1, 2**24), ("steps", 1, 2**40), ("epochs", 1e-9, 1e9),
    ("warmup", 0, 2**40), ("lr", 0, 1e6), ("lr_end", 0, 1e6), ("beta1", 0, 0.999999), ("beta2", 0, 0.9999999),
    ("momentum", 0, 0.999999), ("weight_decay", 0, 1e3), ("clip", 1e-12, 1e12), ("layer_decay", 0.01, 1),
    ("average", 0, 0.9999999), ("dropout", 0, 0.99), ("stochastic_depth", 0, 0.99), ("patience", 1, 2**31),
    ("image_size", 1, 65_536), ("sweep_share", 0.001, 0.9),
)  # fmt: skip


def replace_fields(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with other values; to give steps drops epochs and the reverse."""
    names = {field.name for field in dataclasses.fields(Recipe)}
    for key in changes:
        if key not in names:
            raise unknown_name("recipe field", key, names)
    values = dict(changes)
    if values.get("steps") is not None and "epochs" not in values:
        values["epochs"] = None
    elif values.get("epochs") is not None and "steps" not in values:
        values["steps"] = None
    return dataclasses.replace(recipe, **values)


def parse_set(words: Iterable[str]) -> dict[str, str]:
    """`lr=3e-4,warmup=100` or the two as separate words: names and values as they were typed."""
    found: dict[str, str] = {}
    for word in words:
        for part in _outside_brackets(word):
            name, equals, value = part.partition("=")
            if not equals or not name.strip():
                raise VitreousError(f"--set {part!r}: expected field=value, as --set lr=3e-4,warmup=100")
            if name.strip() in found:
                raise VitreousError(f"--set names {name.strip()} twice")
            found[name.strip()] = value.strip()
    return found


def _outside_brackets(text: str) -> list[str]:
    """Parts between commas that a new `field=` follows; commas inside brackets belong to a preprocessing string."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0 and re.match(r"\s*[a-z_0-9.]+\s*=", text[at + 1 :]):
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _parsed(name: str, text: str) -> Any:
    """`none` for nothing, `0.01:0.03` for several numbers."""
    hints = _hints()
    if name not in hints:
        raise unknown_name("recipe field", name, hints)
    hint = hints[name]
    choices = get_args(hint)
    if text.lower() == "none" and type(None) in choices:
        return None
    try:
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if hint is int or int in choices:
            return int(text)
        if hint is float or (float in choices and type(None) in choices):
            return float(text)
        if hint == tuple[float, ...]:
            return tuple(float(part) for part in re.split("[:;,]", text) if part)
    except (ValueError, KeyError):
        kinds = {bool: "yes or no", tuple[float, ...]: "numbers, as 0.01:0.03"}
        kind = kinds.get(hint, "a whole number" if int in (hint, *choices) else "a number")
        raise VitreousError(f"--set {name}={text}: expected {kind}{' or none' if type(None) in choices else ''}") from None
    return text


def parse_value(name: str, text: str) -> Any:
    """A recipe field's value from what was typed for it, of the right type and within its limits."""
    value = _parsed(name, text)
    _check_field("--set", name, value)
    return value


def to_json(recipe: Recipe) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe)))
    return fields


def from_json(fields: Mapping[str, Any]) -> Recipe:
    names = {field.name for field in dataclasses.fields(Recipe)}
    for key in fields:
        if key not in names:
            raise unknown_name("recipe field", key, names)
    lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
    return Recipe(**{**fields, **lists})


@functools.cache
def _hints() -> dict[str, Any]:
    """The types of the fields; evaluated once, because every recipe that is made asks for each of them."""
    return get_type_hints(Recipe)


def _check_field(where: str, name: str, value: Any) -> None:
    """The type of a field's value, and its limits."""
    hint = _hints()[name]
    choices = get_args(hint)
    if getattr(hint, "__origin__", None) is Literal:
        if value not in choices:
            raise unknown_name(f"{where} {name}", str(value), choices)
        return
    if hint == tuple[float, ...]:
        good = isinstance(value, tuple) and all(map(_is_number, value))
    elif float in (hint, *choices):
        good = (value is None and type(None) in choices) or _is_number(value)
    elif int in (hint, *choices):
        good = (value is None and type(None) in choices) or (isinstance(value, int) and not isinstance(value, bool))
    else:
        good = isinstance(value, hint)
    if not good:
        wanted = "finite numbers" if hint == tuple[float, ...] else "a finite number" if float in (hint, *choices) else ""
        wanted = wanted or ("a whole number" if int in (hint, *choices) else "yes or no" if hint is bool else "text")
        raise VitreousError(f"{where} {name}={value!r} must be {wanted}")
    for least, most in (limits for field, *limits in _LIMITS if field == name and value is not None):
        if not least <= value <= most:
            raise VitreousError(f"{where} {name}={value!r} must lie between {least:g} and {most:g}")


def _is_number(value: object) -> bool:
    """A finite one. (An integer may be too large to be a float; JSON knows no bounds.)"""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
