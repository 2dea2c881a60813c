"""Run a classifier or a bare model in evaluation mode on batches of preprocessed images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor, nn

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inference import eval_mode as inference_mode
from vitreous.inference.batches import Images

Subject: TypeAlias = Classifier | nn.Module


@contextmanager
def eval_mode(subject: Subject) -> Iterator[nn.Module]:
    """The model with dropout off; afterwards as it was. To look must change nothing."""
    model = subject.model if isinstance(subject, Classifier) else subject
    if not isinstance(model, nn.Module):
        raise VitreousError(f"a {type(model).__name__} is no model to look into; load the checkpoint first: vitreous.load(...)")
    with inference_mode.eval_mode(model):
        yield model


def prepared_batches(subject: Subject, images: Images, batch_size: int) -> Iterator[Tensor]:
    """Prepared images (B, C, H, W), so many at a time."""
    if isinstance(subject, Classifier):
        return subject.batches(images, batch_size)
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point() or not len(images):
        raise VitreousError("a bare model takes prepared images, a float tensor (B, C, H, W); a classifier takes any kind")
    if batch_size < 1:
        raise VitreousError(f"batch_size {batch_size} must be at least 1")
    parameter = next(subject.parameters())
    return (part.to(parameter) for part in images.split(batch_size))
