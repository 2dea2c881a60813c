"""Diagnose why an operation differs between two models: the usual causes, tried one by one.

Layer-norm epsilon, GELU form, position resize, input range, head bias, channel order, half-precision weights: what
re-implementations and conversions get wrong most often.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn

from vitreous.data.transforms.ops import CentralCrop, Resize, ResizeSmall, Scale
from vitreous.data.transforms.parse import parse
from vitreous.models.config import PositionResize, ViTConfig
from vitreous.models.positions import resize_grid
from vitreous.models.resnet import StdConv
from vitreous.models.vit import Attention
from vitreous.weights.checkpoint import Checkpoint


def explain_preprocessing(a: str, b: str) -> str:
    """Compare the two strings by kind of step: range first, since it is the commonest mistake."""
    both = parse(a), parse(b)

    def steps(*kinds: type) -> list[list[Any]]:
        return [[op for op in ops if isinstance(op, kinds)] for ops in both]

    values, resizes = steps(Scale), steps(Resize, ResizeSmall)
    if values[0] != values[1]:
        return f"input range: {_text(values[0])} against {_text(values[1])}"
    filters = [[op.filter for op in ops] for ops in resizes]
    if filters[0] != filters[1]:
        return f"resize filter: {', '.join(filters[0]) or 'none'} against {', '.join(filters[1]) or 'none'}"
    crops = steps(Resize, ResizeSmall, CentralCrop)
    return f"resize and crop: {_text(crops[0])} against {_text(crops[1])}"


def _text(ops: list[Any]) -> str:
    return "|".join(map(str, ops)) or "nothing"


def explain_module(name: str, a: nn.Module, b: nn.Module) -> str:
    """Why the second module, of that name, does not do what the first does."""
    if isinstance(a, nn.LayerNorm | nn.GroupNorm) and isinstance(b, nn.LayerNorm | nn.GroupNorm):
        kind = "layer-norm" if isinstance(a, nn.LayerNorm) else "group-norm"
        if a.eps != b.eps and _weights_equal(a, b):
            return f"{kind} epsilon: {a.eps:g} against {b.eps:g}"
    if isinstance(a, StdConv) and isinstance(b, StdConv) and (a.how, a.eps) != (b.how, b.eps) and _weights_equal(a, b):
        return f"weight standardisation: {a.how} with {a.eps:g} against {b.how} with {b.eps:g}"
    if not list(a.parameters()) and not list(b.parameters()):
        both_gelu = "GELU" in type(a).__name__ and "GELU" in type(b).__name__
        return f"{'GELU form' if both_gelu else 'activation'}: {_activation(a)} against {_activation(b)}"
    if isinstance(a, Attention) and isinstance(b, Attention) and _weights_equal(a, b):
        if a.rotary is not None and b.rotary is not None and a.rotary.base != b.rotary.base:
            return f"rotary positions: base {a.rotary.base:g} against {b.rotary.base:g}"
        return f"attention heads: {a.heads} against {b.heads}"
    return _explain_weights(name, a, b)


def _activation(module: nn.Module) -> str:
    if isinstance(module, nn.GELU):
        return "tanh approximation" if module.approximate == "tanh" else "erf (exact)"
    return type(module).__name__


def _weights_equal(a: nn.Module, b: nn.Module) -> bool:
    theirs = dict(b.named_parameters())
    return all(name in theirs and torch.equal(p, theirs[name]) for name, p in a.named_parameters())


def _explain_weights(operation: str, a: nn.Module, b: nn.Module) -> str:
    theirs = dict(b.named_parameters())
    pairs: dict[str, tuple[Tensor, Tensor]] = {name: (p, theirs[name]) for name, p in a.named_parameters() if name in theirs}
    different = {name: (one, other) for name, (one, other) in pairs.items() if not torch.equal(one, other)}
    if not different:
        return "unknown: the weights are the same"
    if set(different) == {"bias"}:
        one, other = different["bias"]
        what = "head bias" if operation.endswith("head") else "bias"
        shift = other - one
        if float(shift.max() - shift.min()) <= 1e-6 * max(1.0, float(shift.abs().max())):
            return f"{what}: the second's is {float(shift.mean()):+.4g} everywhere, the kernel is the same"
        return f"{what}: values differ, the kernel is the same"
    if "weight" in different:
        one, other = different["weight"]
        if one.ndim == 4 and one.shape[1] == 3 and torch.equal(one.flip(1), other):
            return "channel order: RGB against BGR"
        if other.ndim == 2 and one.shape[0] == one.shape[1] and torch.equal(one.T, other):
            return "weights: the kernel is transposed"
    if rounded := _rounding(different):
        return f"weights: the second's are the first's rounded to {rounded}"
    largest = max(float((one - other).abs().max()) for one, other in different.values())
    return f"weights: {', '.join(different)} differ, by up to {largest:.3g}"


def _rounding(different: dict[str, tuple[Tensor, Tensor]]) -> str | None:
    for dtype in (torch.float16, torch.bfloat16):
        if all(torch.equal(one.to(dtype).to(one.dtype), other) for one, other in different.values()):
            return str(dtype).removeprefix("torch.")
    return None


def explain_positions(a: Checkpoint, b: Checkpoint) -> str:
    """Two position tables on one grid differ. If the first was resized: which way gives the second's?"""
    if not isinstance(a.config, ViTConfig) or not isinstance(b.config, ViTConfig) or "positions.0.table" not in a.tensors:
        return "weights: the position embeddings differ"
    one, other = a.tensors["positions.0.table"], b.tensors["positions.0.table"]
    prefix = a.config.position_prefix
    if a.config.grid == b.config.grid:
        if rounded := _rounding({"table": (one, other)}):
            return f"weights: the second's position embeddings are the first's rounded to {rounded}"
        if torch.equal(one[prefix:], other[prefix:]):
            return "weights: only the positions of the leading tokens differ"
        return "weights: the position embeddings differ"
    own = a.config.position_resize
    for mode in get_args(PositionResize):
        resized = resize_grid(one[prefix:], a.config.grid, b.config.grid, mode)
        if float((resized - other[prefix:]).abs().max()) < 1e-5 * float(other.abs().max()):
            return f"position resize: the second's table is the first's resized {mode}, where {own} is due"
    return f"position resize: the second's table is not the first's resized in any known way ({own} is due)"
