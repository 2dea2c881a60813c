"""Robustness: accuracy under five image corruptions at five strengths.

    brightness, blur, JPEG quality, crop, resolution        five strengths each, on one and the same sample of images

The sample is drawn by the seed, and every strength is measured on all of it, so that curves differ by the corruption alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.classifier import Classifier
from vitreous.core.device import PrecisionName as Precision
from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.core.progress import progress_bar, silence
from vitreous.data.sampling import permute
from vitreous.data.source import Content, Item, Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.corruptions import CORRUPTIONS, Corrupted, Corruption
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.predictions import Predictions, predict_dataset

IMAGES = 1000  # an interval of about 3 points to either side, and 25 passes over them


@dataclass(frozen=True)
class Strength:
    strength: float
    accuracy: float
    interval: tuple[float, float]  # 95 %
    n: int  # images with a label that could be read


@dataclass(frozen=True)
class RobustnessCurve:
    name: str
    along: str  # what the strength counts
    untouched: float | None  # the strength that changes nothing, where there is one
    points: tuple[Strength, ...]


@dataclass(frozen=True)
class Robustness:
    clean: Strength  # the same images as they are
    curves: tuple[RobustnessCurve, ...]
    seed: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "n": self.clean.n,
            "data_seed": self.seed,
            "seconds": self.seconds,
            "clean": asdict(self.clean),
            "curves": [
                {"name": curve.name, "along": curve.along, "points": [asdict(point) for point in curve.points]}
                for curve in self.curves
            ],
        }

    def worst(self) -> tuple[str, Strength]:
        """The corruption that costs most, at the strength where it does."""
        every = [(curve.name, point) for curve in self.curves for point in curve.points]
        return min(every, key=lambda entry: entry[1].accuracy)


def measure_robustness(
    clf: Classifier,
    data: Source | Stream,
    predictions: Predictions,
    *,
    images: int = IMAGES,
    seed: int = 0,
    corruptions: Sequence[Corruption] = CORRUPTIONS,
    preprocess: Preprocess | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    world: World | None = None,
) -> Robustness:
    """Accuracy on at most so many of the labelled images in `predictions`, as they are and after each corruption.

    An image that could be read once can be read again; if one cannot, it is missing from that point and its n says so.
    """
    preprocess = preprocess or clf.preprocess
    rows = _draw_rows(predictions, images, seed)
    sample = _sample(data, predictions, rows)
    clean = _measure_strength(1.0, predictions.right()[rows])
    seconds = 0.0
    curves = []
    with progress_bar("robustness", len(rows) * sum(len(corruption.strengths) for corruption in corruptions)) as advance:
        for corruption in corruptions:
            points = []
            for strength in corruption.strengths:
                with silence():
                    found = predict_dataset(
                        clf,
                        Corrupted(sample, corruption, strength, preprocess),
                        preprocess=preprocess,
                        batch_size=batch_size,
                        workers=workers,
                        device=device,
                        precision=precision,
                        world=world,
                        bad_images="skip",
                        mapping=predictions.mapping if predictions.mapping.data else None,
                    )
                points.append(_measure_strength(strength, found.right()[found.labelled()]))
                seconds += found.seconds
                advance(len(rows))
            curves.append(RobustnessCurve(corruption.name, corruption.along, corruption.untouched, tuple(points)))
    return Robustness(clean, tuple(curves), seed, seconds)


def _draw_rows(predictions: Predictions, images: int, seed: int) -> NDArray[np.int64]:
    """Rows of the predictions, in their order."""
    labelled = np.flatnonzero(predictions.labelled())
    if not len(labelled):
        raise VitreousError(f"{predictions.where}: no image has a label to measure robustness by")
    chosen = permute(np.arange(min(images, len(labelled))), len(labelled), seed, 0)
    return np.sort(labelled[chosen])


def _sample(data: Source | Stream, predictions: Predictions, rows: NDArray[np.int64]) -> Source:
    if isinstance(data, Source):
        return data.subset(predictions.numbers[rows])
    chosen = {predictions.ids[row] for row in rows.tolist()}
    return InMemorySource(data, [item for item in data.items() if item.id in chosen])


class InMemorySource(Source):
    """Some items of a stream, in memory: 25 times through all shards would take longer than anything else."""

    def __init__(self, parent: Stream, items: Sequence[Item]) -> None:
        self.where, self.split, self.classes = parent.where, parent.split, parent.classes
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    def id(self, index: int) -> str:
        return self._items[index].id

    def labels(self, index: int) -> tuple[int, ...]:
        return self._items[index].labels

    def read(self, index: int) -> Content:
        return self._items[index].content

    def place(self, index: int) -> str:
        return self._items[index].place


def _measure_strength(strength: float, right: NDArray[np.bool_]) -> Strength:
    accuracy = float(right.mean()) if len(right) else 0.0
    return Strength(strength, accuracy, wilson(accuracy, len(right)), len(right))
