"""Compare two checkpoints operation by operation and name the first that differs.

The first model runs on the images, and every operation's input and output are kept. Then each operation of the
second model is given the first one's input. So each is compared by itself: an error upstream does not blur those
behind it, and all that differ are found, not only the first. Both run in float64, where rounding is about 1e-15
and a layer-norm epsilon of 1e-12 in place of 1e-6 shows plainly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.classifier import Classifier
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
class Comparison:
    operations: int  # how many were compared
    differences: tuple[Difference, ...]  # in the order of computation
    logits: float  # relative difference at the very end, everything included
    notes: tuple[str, ...] = field(default=())

    @property
    def equal(self) -> bool:
        return not self.differences


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest value; infinite where shapes differ or one is not finite."""
    if found.shape != expected.shape or not bool(torch.isfinite(found).all() and torch.isfinite(expected).all()):
        return float("inf")
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    difference = float((found - expected).abs().max()) if expected.numel() else 0.0
    return difference if largest == 0.0 else difference / largest


@torch.no_grad()
def compare_checkpoints(a: Classifier, b: Classifier, images: list[Any], tolerance: float = TOLERANCE) -> Comparison:
    """Compare two loaded checkpoints on images; each prepares them in its own way."""
    structure = _structure(a.config, b.config)
    if structure:
        return Comparison(0, tuple(structure), float("inf"))
    notes, differences = [], []
    if isinstance(a.config, ViTConfig) and a.config.grid != b.config.grid:
        notes.append(
            f"the first has a grid of {a.config.grid}, the second of {b.config.grid}: the first is resized to the second's"
        )
        original, a = a, Classifier(adapt(a.checkpoint, image_size=b.config.image_size))
    else:
        original = a
    count = 1
    inputs_a, inputs_b = a.prepare(images).double(), b.prepare(images).double()
    difference = relative_difference(inputs_b, inputs_a)
    if difference > tolerance:
        cause = explain_preprocessing(str(a.preprocess), str(b.preprocess))
        differences.append(Difference("preprocessing", difference, cause))
    model_a, model_b = (copy.deepcopy(clf.model).double().eval() for clf in (a, b))
    if isinstance(model_a, ViT) and isinstance(model_b, ViT):
        count += _compare_tokens(model_a, model_b, tolerance, differences)
        if any(difference.operation == "positions" for difference in differences):
            cause = explain_positions(original.checkpoint, b.checkpoint)
            differences = [replace(d, cause=cause) if d.operation == "positions" else d for d in differences]
    recorded, logits_a = _record(model_a, inputs_a)
    for name, kept_in, kept_out in recorded:
        other = model_b.get_submodule(name)
        output = other(*kept_in)
        count += 1
        difference = relative_difference(output, kept_out)
        if difference > tolerance:
            cause = explain_module(name, model_a.get_submodule(name), other)
            differences.append(Difference(name, difference, cause))
    end = relative_difference(model_b(inputs_b), logits_a)
    if not differences and end > tolerance:  # a step that no module stands for, such as a max pool's padding
        differences.append(Difference("between operations", end, _config_cause(a.config, b.config)))
    if a.checkpoint.outputs != b.checkpoint.outputs:
        cause = f"probabilities: {a.checkpoint.outputs} against {b.checkpoint.outputs}"
        differences.append(Difference("outputs", float("inf"), cause))
    if a.classes != b.classes:
        notes.append("class names differ")
    order = _order([name for name, _, _ in recorded])
    differences.sort(key=lambda d: order[d.operation])
    return Comparison(count, tuple(differences), end, tuple(notes))


_TOKENS = ("class_token", "distillation_token", "registers", "mask_token")


def _order(recorded: list[str]) -> dict[str, int]:
    """When each operation happens. Modules were recorded as they ran; tokens and positions follow the embedding."""
    stem = recorded.index("embedding") + 1 if "embedding" in recorded else 0
    names = ["preprocessing", *recorded[:stem], *_TOKENS, "positions", *recorded[stem:], "between operations", "outputs"]
    return {name: place for place, name in enumerate(names)}


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


def _record(model: Model, images: Tensor) -> tuple[list[tuple[str, tuple[Any, ...], Tensor]], Tensor]:
    """Run the model; the inputs and output of every operation, and the logits."""
    kept: list[tuple[str, tuple[Any, ...], Tensor]] = []

    def keep(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: kept.append((name, inputs, output))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name and _is_operation(module):
                hooks.enter_context(module.register_forward_hook(keep(name)))
        return kept, model(images)


def _compare_tokens(a: ViT, b: ViT, tolerance: float, differences: list[Difference]) -> int:
    """Learned tokens and positions, which are added rather than applied."""
    count = 0
    for name in _TOKENS:
        one, other = getattr(a, name), getattr(b, name)
        if one is not None and other is not None:
            count += 1
            difference = relative_difference(other, one)
            if difference > tolerance:
                differences.append(Difference(name, difference, f"weights: the learned {name.replace('_', ' ')}s differ"))
    for one, other in zip(a.positions, b.positions, strict=True):
        count += 1
        table = one(b.config.grid)
        difference = relative_difference(other(b.config.grid), table)
        if difference > tolerance:
            differences.append(Difference("positions", difference, "weights: the position embeddings differ"))
    return count


def _structure(a: ModelConfig, b: ModelConfig) -> list[Difference]:
    """What makes two models impossible to compare operation by operation."""
    if type(a) is not type(b):
        return [Difference("architecture", float("inf"), f"{a.name} against {b.name}")]
    own = ["width", "depth", "heads", "mlp", "patch", "channels", "classes", "pool", "representation", "class_token"]
    own += ["distillation_token", "distillation_head", "registers", "mask_token", "position_prefix", "positions"]
    own += ["position_placement", "attention", "mlp_form", "qkv_bias", "norm_after_pool", "units", "form"]
    out = []
    for key in own:
        one, other = getattr(a, key, None), getattr(b, key, None)
        if one != other:
            out.append(Difference("architecture", float("inf"), f"{key}: {one} against {other}"))
    one, other = getattr(a, "layer_scale", None) is None, getattr(b, "layer_scale", None) is None
    if one != other:
        out.append(Difference("architecture", float("inf"), "one has layer scale, the other has not"))
    trunks = getattr(a, "trunk", None), getattr(b, "trunk", None)
    if (trunks[0] is None) != (trunks[1] is None):
        out.append(Difference("architecture", float("inf"), "one is a hybrid, the other is not"))
    elif trunks[0] is not None and trunks[1] is not None:
        out += _structure(trunks[0], trunks[1])
    return out


def _config_cause(a: ModelConfig, b: ModelConfig) -> str:
    trunk_a, trunk_b = (config.trunk if isinstance(config, ViTConfig) else config for config in (a, b))
    if trunk_a and trunk_b and trunk_a.root_padding != trunk_b.root_padding:
        return f"padding before the max pool: {trunk_a.root_padding} against {trunk_b.root_padding}"
    return "unknown: each operation agrees by itself"
