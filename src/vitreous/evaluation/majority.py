"""The accuracy of always predicting the majority class, which every result is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def majority_rate(counts: ArrayLike, train: ArrayLike | None = None, n: int | None = None) -> float:
    """The share of evaluated images that the majority class gets right, from 0 to 1.

    `counts` are the evaluated images of each class. The class is the most frequent one of the training images, `train`, or,
    where those are not known, of the evaluated images. `n` is the number of evaluated images, where they have several labels.
    """
    evaluated = np.asarray(counts, dtype=np.int64)
    known = evaluated if train is None else np.asarray(train, dtype=np.int64)
    n = int(evaluated.sum()) if n is None else n
    return float(evaluated[known.argmax()] / n) if n else 0.0


def count_labels(labels: Iterable[Sequence[int]], classes: int) -> NDArray[np.int64]:
    """How many images have each label; an image with several labels counts for each."""
    return np.bincount([label for own in labels for label in own], minlength=classes)


def describe_majority(rate: float) -> str:
    """To stand beside an accuracy."""
    return f"the largest class alone: {rate:.1%}"


def beats_majority(accuracy: float, rate: float) -> bool:
    """Whether a result may be shown as a good one; where there is one class only, all right is all there is."""
    return accuracy > rate or accuracy == 1.0
