"""The result of validating a run: headline metrics and the worst mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.counts import PerClass


@dataclass(frozen=True, eq=False)
class Mistake:
    id: str
    pixels: NDArray[np.uint8]
    """(height, width, 3), or (height, width) where it is grey; of any size, the page makes it small."""
    truth: tuple[str, ...]
    guesses: tuple[tuple[str, float], ...]
    """Class and probability, best first, at most 5."""
    loss: float


class Outcome(NamedTuple):
    """Class indices; an image without labels has no outcome."""

    id: str
    labels: tuple[int, ...]
    predicted: int


@dataclass(frozen=True, eq=False)
class ValidationResult:
    split: str
    classes: tuple[str, ...]
    confusion: NDArray[np.int64]
    """(truth, prediction): images of a class by predicted class, by first label. (0, 0) where there are too
    many classes to count every pair."""
    top1: float
    top5: float | None
    """None where there are too few classes for it to say anything."""
    n: int
    loss: float
    mistakes: tuple[Mistake, ...]
    """The worst first."""
    per_class: tuple[PerClass, ...] = ()
    """Where images have several labels, these are not the confusion's: each label counts."""
    majority: float | None = None
    """What always predicting the largest class of the training images would get; None where it was not counted."""
    outcomes: tuple[Outcome, ...] = ()
    """By id, whichever rank had the image."""
