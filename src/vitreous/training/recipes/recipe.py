"""A recipe: how to train, in one frozen dataclass. Any field can be changed with `--set field=value`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vitreous.core.errors import VitreousError
from vitreous.core.fields import Between, check_fields, check_names, check_value, field_types, parse_text
from vitreous.core.fields import from_json as fields_from_json
from vitreous.data.sampling import Sampling
from vitreous.data.transforms.mixup import check_alpha
from vitreous.data.transforms.parse import Preprocess
from vitreous.training.options import ObjectiveName, Train

Loss = Literal["softmax", "sigmoid"]
MaskTarget = Literal["mean", "downsized", "pixels"]
Optimizer = Literal["adam", "sgd", "muon"]
Schedule = Literal["linear", "cosine", "staircase", "constant"]

# Fields that are for classification alone.
_FOR_CLASSES = (
    "mixup", "cutmix", "smoothing", "head_bias", "representation", "class_weights", "pos_weight", "sampling", "head_start",
    "train",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    name: str = "custom"
    about: str = ""  # where it comes from, and what it is for

    # What is learnt.
    objective: ObjectiveName = "classification"
    loss: Loss = "softmax"
    smoothing: Annotated[float, Between(0, 0.999)] = (
        0.0  # sigmoid: targets are 1 - s and s (the paper's 1e-4); softmax: s is spread over all classes
    )
    # Fine-tuning: `ridge` begins with the closed-form head on the frozen features, and the result is the best evaluation.
    head_start: Literal["zero", "ridge"] = "zero"
    head_bias: float = 0.0  # -10 in pre-training: at first, every class is unlikely
    representation: bool = False  # a tanh layer before the head, which fine-tuning drops
    # Balanced: every class counts alike, however many images it has.
    class_weights: Literal["none", "balanced"] = "none"
    # Balanced: of each class, the labels that images have weigh as much as those that they lack (sigmoid).
    pos_weight: Literal["none", "balanced"] = "none"
    # Balanced: every batch has as many images of each class, those of small classes more often.
    sampling: Sampling = "uniform"
    # With --teacher: its share of the loss, and what logits are divided by before they are compared.
    teacher_weight: Annotated[float, Between(0, 1)] = 0.5
    teacher_temperature: Annotated[float, Between(0.01, 1000)] = 2.0
    mask_share: Annotated[float, Between(0.001, 1)] = 0.5  # of patches, corrupted
    mask_target: MaskTarget = "mean"

    # How long, and in what steps. Exactly one of steps and epochs is given.
    batch_size: Annotated[int, Between(1, 2**24)] = 512
    steps: Annotated[int | None, Between(1, 2**40)] = None
    epochs: Annotated[float | None, Between(1e-9, 1e9)] = None
    warmup: Annotated[int, Between(0, 2**40)] = 0  # steps

    # The optimiser.
    optimizer: Optimizer = "sgd"
    lr: Annotated[float, Between(0, 1e6)] = 0.01
    schedule: Schedule = "cosine"
    lr_end: Annotated[float, Between(0, 1e6)] = 0.0
    # Staircase: shares of the run after which the rate is divided by ten.
    milestones: tuple[float, ...] = ()
    beta1: Annotated[float, Between(0, 0.999999)] = 0.9
    beta2: Annotated[float, Between(0, 0.9999999)] = 0.999
    momentum: Annotated[float, Between(0, 0.999999)] = 0.9
    weight_decay: Annotated[float, Between(0, 1e3)] = (
        0.0  # adam, muon: decoupled, every step takes lr * weight_decay of each weight; sgd: joins the gradient
    )
    # Kernels: biases, norms, tokens and position embeddings are spared.
    decay: Literal["all", "kernels"] = "all"
    clip: Annotated[float | None, Between(1e-12, 1e12)] = None  # the gradient's largest norm
    # Each layer learns this many times as fast as the one above it.
    layer_decay: Annotated[float, Between(0.01, 1)] = 1.0
    train: Train = "all"  # head: a linear probe; lora: factors of low rank beside frozen matrices, and the head
    lora_rank: Annotated[int, Between(1, 4096)] = 8
    lora_scale: Annotated[float, Between(1e-6, 1e6)] = 2.0  # of the factors' product; alpha / rank in other programs
    average: Annotated[float, Between(0, 0.9999999)] = (
        0.0  # Polyak: the share of the old average that a step keeps, 0.9999 in table 2
    )

    # Against overfitting.
    dropout: Annotated[float, Between(0, 0.99)] = 0.0
    stochastic_depth: Annotated[float, Between(0, 0.99)] = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0  # beside mixup: one of the two at each step
    # Stop after so many evaluations without a better one.
    patience: Annotated[int | None, Between(1, 2**31)] = None

    # Images: strings for this size, which follow another size in proportion.
    # None: the images' own, or the checkpoint's.
    image_size: Annotated[int | None, Between(1, 65_536)] = None
    preprocess: str = "inception_crop(224)|flip|range(-1,1)"
    evaluation: str = "resize(224)|range(-1,1)"

    # The learning rates that `--sweep` tries, and how much of the training set it judges them by.
    sweep: tuple[float, ...] = ()
    sweep_share: Annotated[float, Between(0.001, 0.9)] = 0.1

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"recipe {self.name}: {name}={value}")
        for name in ("mixup", "cutmix"):
            check_alpha(name, getattr(self, name))
        changed = any(getattr(self, name) != getattr(Recipe, name) for name in _FOR_CLASSES)
        wrong = {
            f"give steps or epochs, one of them (steps={self.steps}, epochs={self.epochs})":
                (self.steps is None) == (self.epochs is None),
            f"sweep={self.sweep} must be learning rates above 0, as 0.003:0.01:0.03": any(rate <= 0 for rate in self.sweep),
            f"lr_end={self.lr_end:g} is above lr={self.lr:g}; add lr_end=0": self.lr_end > self.lr,
            f"milestones={self.milestones} must be rising shares of the run, as 0.3:0.6:0.9":
                list(self.milestones) != sorted(self.milestones) or not all(0 < share < 1 for share in self.milestones),
            "a staircase needs milestones, as milestones=0.3:0.6:0.9": self.schedule == "staircase" and not self.milestones,
            f"{', '.join(_FOR_CLASSES)} are for classification, not for masked-patch":
                self.objective == "masked-patch" and changed,
            "pos_weight=balanced is for loss=sigmoid; with softmax use class_weights=balanced":
                self.pos_weight == "balanced" and self.loss != "sigmoid",
            f"evaluation={self.evaluation!r} is random; it must be a fixed string": Preprocess(self.evaluation).random,
        }  # fmt: skip
        for problem in (problem for problem, found in wrong.items() if found):
            raise VitreousError(f"recipe {self.name}: {problem}")
        Preprocess(self.preprocess)


def replace_fields(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with other values; to give steps drops epochs and the reverse."""
    check_names(changes, Recipe, "recipe field")
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


def parse_value(name: str, text: str) -> Any:
    """A recipe field's value from what was typed for it, of the right type and within its limits."""
    check_names({name: text}, Recipe, "recipe field")
    hint = field_types(Recipe)[name]
    value = parse_text(hint, text)
    check_value(hint, value, name, lambda name, value: f"--set {name}={value}")
    return value


def to_json(recipe: Recipe) -> dict[str, Any]:
    return dict(json.loads(json.dumps(dataclasses.asdict(recipe))))


def from_json(fields: Mapping[str, Any]) -> Recipe:
    recipe: Recipe = fields_from_json(Recipe, fields, "recipe field")
    return recipe
