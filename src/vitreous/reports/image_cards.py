"""An image on a report's page with its label and the model's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitreous.reports.images import EmbeddedImage

Predicted = tuple[str, float, bool]
"""Class, probability, and whether it is correct."""
Neighbour = tuple[EmbeddedImage | None, str, float, str]
"""A training image, None where it is not at hand, its label, similarity and id."""


@dataclass(frozen=True)
class ImageCard:
    id: str
    image: EmbeddedImage
    truth: str
    predictions: Sequence[Predicted]
    """Best first."""
    loss: str
    """Empty where it is not known."""
    attention: str | None = None
    """Data URI of what is laid over the image."""
    neighbours: Sequence[Neighbour] = ()
    """The nearest training images."""
    suggestion: tuple[str, str] | None = None
    """The class that a likely label error should have, and why."""
    other: tuple[str, Sequence[Predicted]] | None = None
    """Another checkpoint and its predictions."""
