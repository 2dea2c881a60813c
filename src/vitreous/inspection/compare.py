"""Compare two checkpoints operation by operation and name the first that differs.

The first model runs on the images, and every operation's input and output are kept. Then each operation of the
second model is given the first one's input. So each is compared by itself: an error upstream does not blur those
behind it, and all that differ are found, not only the first. Both run in float64, where rounding is about 1e-15
and a layer-norm epsilon of 1e-12 in place of 1e-6 shows plainly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.classifier import Classifier
from vitreous.core.table import table
from vitreous.inspection.diagnose import explain_module, explain_positions, explain_preprocessing
from vitreous.models.build import Model
from vitreous.models.config import ModelConfig, ViTConfig
from vitreous.models.layers import LayerScale
from vitreous.models.pooling import AttentionPool
from vitreous.models.positions import RelativePositions
from vitreous.models.resnet import StdConv
from vitreous.models.vit import Attention, ViT
from vitreous.weights.transfer import adapt

TOLERANCE = 1e-9  # relative, in float64


@dataclass(frozen=True)
class Difference:
    """An operation whose outputs differ though its inputs are the same."""

    operation: str
    relative: float
    cause: str


@dataclass(frozen=True)
class Verification:
    operations: int  # how many were compared
    findings: tuple[Difference, ...]  # in the order of computation
    logits: float  # relative difference at the very end, everything included
    notes: tuple[str, ...] = ()
    preprocess: str = ""  # of the checkpoint; the reference has its own

    @property
    def equal(self) -> bool:
        return not self.findings

    @property
    def first(self) -> Difference | None:
        return self.findings[0] if self.findings else None

    @property
    def exit_code(self) -> int:
        return 0 if self.equal else 1

    def text(self) -> str:
        if self.first is None:
            what = f"{self.operations} operations" if self.operations > 2 else "recorded outputs"
            return f"equal: {what} compared, logits differ by {self.logits:.1e} relative"
        lines = [
            f"DIFFERENT, first at {self.first.operation}: {self.first.cause}",
            "logits cannot be compared" if math.isinf(self.logits) else f"logits differ by {self.logits:.1e} relative",
        ]
        rows = []
        for cause in dict.fromkeys(finding.cause for finding in self.findings):
            same = [finding for finding in self.findings if finding.cause == cause]
            worst = max(f.relative for f in same)
            rows.append((cause, same[0].operation, len(same), "-" if math.isinf(worst) else f"{worst:.1e}"))
        return "\n".join([*lines, "", table(("likely cause", "first at", "operations", "relative difference"), rows)])

    def records(self) -> list[dict[str, Any]]:
        first = self.first and asdict(self.first)
        return [{"equal": self.equal, "operations": self.operations, "logits": self.logits, "first": first, **asdict(self)}]


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest value; infinite where shapes differ or one is not finite."""
    if found.shape != expected.shape or not bool(torch.isfinite(found).all() and torch.isfinite(expected).all()):
        return float("inf")
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    difference = float((found - expected).abs().max()) if expected.numel() else 0.0
    return difference if largest == 0.0 else difference / largest


@torch.no_grad()
def compare_checkpoints(a: Classifier, b: Classifier, images: list[Any], tolerance: float = TOLERANCE) -> Verification:
    """Compare two loaded checkpoints on images; each prepares them in its own way."""
    if structure := _structure(a.config, b.config):
        return Verification(0, tuple(Difference("architecture", float("inf"), cause) for cause in structure), float("inf"))
    notes, original = [], a
    if isinstance(a.config, ViTConfig) and a.config.grid != b.config.grid:
        notes.append(
            f"the first has a grid of {a.config.grid}, the second of {b.config.grid}: the first is resized to the second's"
        )
        a = Classifier(adapt(a.checkpoint, image_size=b.config.image_size))
    inputs_a, inputs_b = a.prepare(images).double(), b.prepare(images).double()
    model_a, model_b = (copy.deepcopy(clf.model).double().eval() for clf in (a, b))
    recorded, logits_a = _record(model_a, inputs_a)
    pairs: list[Pair] = [
        ("preprocessing", inputs_b, inputs_a, lambda: explain_preprocessing(str(a.preprocess), str(b.preprocess))),
        *_pairs(model_a, model_b, recorded, lambda: explain_positions(original.checkpoint, b.checkpoint)),
    ]
    differences = []
    for operation, found, expected, explain in pairs:
        difference = relative_difference(found, expected)
        if difference > tolerance:
            differences.append(Difference(operation, difference, explain()))
    end = relative_difference(model_b(inputs_b), logits_a)
    if not differences and end > tolerance:  # a step that no module stands for, such as a max pool's padding
        differences.append(Difference("between operations", end, _config_cause(a.config, b.config)))
    if a.checkpoint.outputs != b.checkpoint.outputs:
        cause = f"probabilities: {a.checkpoint.outputs} against {b.checkpoint.outputs}"
        differences.append(Difference("outputs", float("inf"), cause))
    if a.classes != b.classes:
        notes.append("class names differ")
    return Verification(len(pairs), tuple(differences), end, tuple(notes))


Recorded = tuple[str, tuple[Any, ...], Tensor]
"""An operation, its inputs and its output."""
Pair = tuple[str, Tensor, Tensor, Callable[[], str]]
"""An operation, the second model's output, the first one's, and why they differ, if they do."""


def _pairs(a: Model, b: Model, recorded: Sequence[Recorded], explain_positions: Callable[[], str]) -> Iterator[Pair]:
    """In the order of computation: modules as they ran; tokens and positions, which are added, follow the embedding."""
    names = [name for name, _, _ in recorded]
    stem = names.index("embedding") + 1 if "embedding" in names else 0
    for place, (name, inputs, output) in enumerate(recorded):
        if place == stem and isinstance(a, ViT) and isinstance(b, ViT):
            yield from _token_pairs(a, b, explain_positions)
        one, other = a.get_submodule(name), b.get_submodule(name)
        yield name, other(*inputs), output, partial(explain_module, name, one, other)


def _token_pairs(a: ViT, b: ViT, explain_positions: Callable[[], str]) -> Iterator[Pair]:
    for name in ("class_token", "distillation_token", "registers", "mask_token"):
        one, other = getattr(a, name), getattr(b, name)
        if one is not None and other is not None:
            cause = f"weights: the learned {name.replace('_', ' ')}s differ"
            yield name, other, one, partial(str, cause)
    for one, other in zip(a.positions, b.positions, strict=True):
        yield "positions", other(b.config.grid), one(b.config.grid), explain_positions


_OPERATIONS = (
    nn.Linear,
    nn.Conv2d,
    nn.LayerNorm,
    nn.GroupNorm,
    StdConv,
    LayerScale,
    Attention,
    AttentionPool,
    RelativePositions,
)


def _is_operation(module: nn.Module) -> bool:
    activation = type(module).__name__ in ("GELU", "QuickGELU", "ReLU", "SiLU")
    return isinstance(module, _OPERATIONS) or activation


def _record(model: Model, images: Tensor) -> tuple[list[Recorded], Tensor]:
    """Run the model; the inputs and output of every operation, and the logits."""
    kept: list[Recorded] = []

    def keep(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: kept.append((name, inputs, output))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name and _is_operation(module):
                hooks.enter_context(module.register_forward_hook(keep(name)))
        return kept, model(images)


_STRUCTURE = [
    "width",
    "depth",
    "heads",
    "mlp",
    "patch",
    "channels",
    "classes",
    "pool",
    "representation",
    "class_token",
    "distillation_token",
    "distillation_head",
    "registers",
    "mask_token",
    "position_prefix",
    "positions",
    "position_placement",
    "attention",
    "mlp_form",
    "qkv_bias",
    "key_bias",
    "embedding_norm",
    "norm_after_pool",
    "units",
    "form",
]


def _structure(a: ModelConfig, b: ModelConfig) -> list[str]:
    """What makes two models impossible to compare operation by operation."""
    if type(a) is not type(b):
        return [f"{a.name} against {b.name}"]
    values = [(key, getattr(a, key, None), getattr(b, key, None)) for key in _STRUCTURE]
    causes = [f"{key}: {one} against {other}" for key, one, other in values if one != other]
    scaled = [getattr(config, "layer_scale", None) is None for config in (a, b)]
    if scaled[0] != scaled[1]:
        causes.append("one has layer scale, the other has not")
    trunk_a, trunk_b = (getattr(config, "trunk", None) for config in (a, b))
    if (trunk_a is None) != (trunk_b is None):
        causes.append("one is a hybrid, the other is not")
    elif trunk_a is not None and trunk_b is not None:
        causes += _structure(trunk_a, trunk_b)
    return causes


def _config_cause(a: ModelConfig, b: ModelConfig) -> str:
    trunk_a, trunk_b = (config.trunk if isinstance(config, ViTConfig) else config for config in (a, b))
    if trunk_a and trunk_b and trunk_a.root_padding != trunk_b.root_padding:
        return f"padding before the max pool: {trunk_a.root_padding} against {trunk_b.root_padding}"
    return "unknown: each operation agrees by itself"
