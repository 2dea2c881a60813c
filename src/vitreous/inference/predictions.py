"""From logits to the most likely classes and their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class TopClasses(NamedTuple):
    """The most likely classes of one image, best first."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


def class_probabilities(logits: Tensor, *, sigmoid: bool) -> Tensor:
    """Softmax over the classes, or sigmoid for a head whose classes do not exclude each other."""
    return logits.sigmoid() if sigmoid else logits.softmax(dim=1)


def top_classes(logits: Tensor, top: int) -> Tensor:
    """Indices (B, top) of the most likely classes, best first; of equal ones the lower index first.

    Ordered by logits: the probabilities of a confident model are all 0 or 1, in which the order is lost. And by a
    stable sort: topk promises nothing of equal values.
    """
    return logits.sort(dim=1, descending=True, stable=True).indices[:, :top]


def top_predictions(logits: Tensor, classes: Sequence[str], top: int, *, sigmoid: bool) -> list[TopClasses]:
    """The `top` most likely classes of each image by name."""
    indices = top_classes(logits, top)
    probabilities = class_probabilities(logits, sigmoid=sigmoid).gather(1, indices)
    return [
        TopClasses(tuple(classes[index] for index in row), tuple(values))
        for row, values in zip(indices.tolist(), probabilities.tolist(), strict=True)
    ]
