"""Compare a checkpoint with recorded outputs: an .npz with `images` and `logits`.

There are no inner values to compare, so when the logits differ the usual mistakes are tried on the model itself;
the one that makes them agree is the likely cause.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inspection.compare import Difference, Verification, relative_difference
from vitreous.models.config import PositionResize, ViTConfig, replace_config
from vitreous.weights.arrays import Arrays, open_arrays
from vitreous.weights.checkpoint import Checkpoint

TOLERANCE = 1e-5  # recorded outputs are float32, and so is the run that is compared with them


def read_recorded(path: Path) -> Arrays | None:
    """The arrays of a file with recorded images and logits; None for any other file."""
    if not path.is_file() or path.suffix != ".npz":
        return None
    arrays = open_arrays(path)
    return arrays if {"images", "logits"} <= set(arrays.shapes) else None


def compare_recorded(a: Classifier, arrays: Arrays, tolerance: float = TOLERANCE) -> Verification:
    """Every recorded pair, `images` with `logits` and `images_big` with `logits_big` if they are there."""
    differences = []
    worst, pairs = 0.0, 0
    for suffix in ("", "_big"):
        if f"images{suffix}" not in arrays.shapes or f"logits{suffix}" not in arrays.shapes:
            continue
        images, expected = _images(arrays, f"images{suffix}"), arrays[f"logits{suffix}"]
        pairs += 1
        found = relative_difference(_logits(a.checkpoint, images), expected)
        worst = max(worst, found)
        if not found <= tolerance:
            differences.append(Difference(f"logits{suffix}", found, _suspect(a.checkpoint, images, expected, tolerance)))
    return Verification(pairs, tuple(differences), worst)


def _images(arrays: Arrays, name: str) -> Tensor:
    images = arrays[name]
    if images.ndim != 4:
        raise VitreousError(f"{arrays.path}: {name} has shape {tuple(images.shape)}; expected (B, H, W, C)")
    return images.permute(0, 3, 1, 2).contiguous() if images.shape[3] in (1, 3) else images


@torch.no_grad()
def _logits(checkpoint: Checkpoint, images: Tensor) -> Tensor:
    logits: Tensor = Classifier(checkpoint).model(images)
    return logits


def _suspect(checkpoint: Checkpoint, images: Tensor, expected: Tensor, tolerance: float) -> str:
    own = _logits(checkpoint, images)
    if own.shape != expected.shape:
        return f"classes: {own.shape[1]} against {expected.shape[-1]}"
    if len(images) > 1 and relative_difference(own + (expected - own).mean(dim=0), expected) <= tolerance:
        return "head bias: the same for every image, the rest agrees"
    for cause, changed, shown in _mistakes(checkpoint, images):
        if relative_difference(_logits(changed, shown), expected) <= tolerance:
            return cause
    return "weights, or several causes at once: no single usual mistake explains it"


def _mistakes(checkpoint: Checkpoint, images: Tensor) -> Iterator[tuple[str, Checkpoint, Tensor]]:
    yield "input range: the recorded run took images in [0, 1]", checkpoint, (images + 1) / 2
    yield "channel order: RGB against BGR", checkpoint, images.flip(1)
    config = checkpoint.config
    vit = isinstance(config, ViTConfig)
    tries: list[tuple[str, str, Sequence[object]]] = [
        ("layer-norm epsilon" if vit else "group-norm epsilon", "norm_eps", (1e-12, 1e-6, 1e-5, 1e-3)),
        ("GELU form", "activation", ("gelu-tanh", "gelu-erf", "gelu-quick")),
        ("position resize", "position_resize", get_args(PositionResize)),
    ]
    for what, option, values in tries if vit else tries[:1]:
        present = getattr(config, option)
        for value in values:
            if value != present:
                changed = dataclasses.replace(checkpoint, config=replace_config(config, **{option: value}))
                yield f"{what}: {_text(present)} against {_text(value)}", changed, images


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
