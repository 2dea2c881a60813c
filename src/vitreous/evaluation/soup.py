"""A model soup [Wortsman et al. 2022]: the mean of the weights of several runs, which costs no more to run than one.

It helps where runs began from the same checkpoint and lie in one valley of the loss, as fine-tuned ones do. Runs from different
random weights do not, and their mean is worthless; so a soup is measured before it is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from vitreous.classifier import describe_parent, read_checkpoint
from vitreous.core.errors import VitreousError
from vitreous.models.config import ModelConfig
from vitreous.weights.checkpoint import Checkpoint

_RATES = ("name", "dropout", "attention_dropout", "stochastic_depth")  # of training: outputs do not depend on them


def average_checkpoints(sources: Sequence[str]) -> Checkpoint:
    """The mean of their weights, in float64 and then float32; all else is the first one's."""
    first, *others = [read_checkpoint(source) for source in sources]
    for source, other in zip(sources[1:], others, strict=True):
        _check_alike(sources[0], first, source, other)
    parts = (first, *others)
    tensors = {name: torch.stack([part.tensors[name].double() for part in parts]).mean(dim=0).float() for name in first.tensors}
    parents = [describe_parent(source, part) for source, part in zip(sources, parts, strict=True)]
    return dataclasses.replace(first, tensors=tensors, parent={"soup": parents}, metrics={})


def _check_alike(source: str, first: Checkpoint, other_source: str, other: Checkpoint) -> None:
    compared: dict[str, tuple[Any, Any]] = {
        "architectures": (_architecture(first.config), _architecture(other.config)),
        "weights": ({name: t.shape for name, t in first.tensors.items()}, {name: t.shape for name, t in other.tensors.items()}),
        "classes": (first.classes, other.classes),
        "outputs": (first.outputs, other.outputs),
        "preprocessing": (first.preprocess, other.preprocess),
    }
    different = [what for what, (own, theirs) in compared.items() if own != theirs]
    if different:
        raise VitreousError(
            f"--soup {other_source}: its {different[0]} are not those of {source}; only runs that differ in nothing but their "
            f"weights can be averaged"
        )


def _architecture(config: ModelConfig) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in _RATES}
