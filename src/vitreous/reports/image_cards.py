"""An image on a report's page with its label and the model's predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitreous.reports.images import EmbeddedImage


@dataclass(frozen=True)
class PredictionBar:
    name: str
    share: float
    """Length of the bar, from 0 to 1."""
    probability: str
    correct: bool


@dataclass(frozen=True)
class Neighbour:
    image: EmbeddedImage | None
    """None where the image is not at hand."""
    label: str
    similarity: float
    id: str


@dataclass(frozen=True)
class Suggestion:
    """The class that a likely label error should have."""

    name: str
    about: str


@dataclass(frozen=True)
class ImageCard:
    id: str
    image: EmbeddedImage
    truth: str
    predictions: Sequence[PredictionBar]
    loss: str
    """Empty where it is not known."""
    attention: str | None = None
    """Data URI of what is laid over the image."""
    neighbours: Sequence[Neighbour] = ()
    """The nearest training images."""
    suggestion: Suggestion | None = None
    other: tuple[str, Sequence[PredictionBar]] | None = None
    """Another checkpoint and its predictions."""


def prediction_bars(predictions: Iterable[tuple[str, float, bool]], digits: int = 0) -> list[PredictionBar]:
    """From (class, probability, whether it is correct), best first."""
    return [
        PredictionBar(name, min(1.0, max(0.0, value)), f"{value:.{digits}%}", correct)
        if math.isfinite(value)
        else PredictionBar(name, 0.0, "–", correct)
        for name, value, correct in predictions
    ]
