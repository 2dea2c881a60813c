"""What is measured at the end of a cell's runs: test accuracy, few-shot accuracy or attention distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.classifier import Classifier, load
from vitreous.data.source import Dataset, Source
from vitreous.evaluation.fewshot import FewshotTask, fewshot
from vitreous.evaluation.predictions import predict_dataset
from vitreous.inference.features import Features, compute_features
from vitreous.inspection.distance import attention_distance, uniform_distance
from vitreous.models.config import ViTConfig
from vitreous.studies.study import Cell, Measure
from vitreous.studies.study_data import open_once

SHOTS, DRAWINGS, TEST_IMAGES, LOOKED_AT = 10, (0, 1, 2), 4_000, 128
GLOBAL = 0.7  # of the distance of uniform attention: a head that looks farther counts as global


@dataclass(frozen=True)
class Measured:
    values: Mapping[str, float]  # columns of runs.csv
    right: NDArray[np.bool_] | None = None  # of each test image, for paired statistics


def measure_cell(cell: Cell, run: Path, result: Mapping[str, Any]) -> Measured:
    """`run` is the folder of the cell's last run, `result` what that run reports."""
    if cell.role == "trial":  # validated on images that the run held out itself
        return Measured({"accuracy": float(result["top1"]), "n": int(result["n"])})
    return _MEASURES[cell.measure](cell, load(run / "checkpoint"))


def test_images(dataset: Dataset) -> Source:
    """The test split, or else the validation split. Of a large one some, evenly spaced: training is to take longer."""
    found = dataset.splits.get("test") or dataset.splits["validation"]
    assert isinstance(found, Source)
    if len(found) <= TEST_IMAGES:
        return found
    return found.subset(np.linspace(0, len(found) - 1, TEST_IMAGES).astype(np.int64), found.split)


def _test(cell: Cell, clf: Classifier) -> Measured:
    predictions = predict_dataset(clf, test_images(open_once(str(cell.stages[-1].options["data"]))), workers=0)
    right = predictions.right()
    return Measured({"accuracy": float(right.mean()), "loss": float(np.nanmean(predictions.losses)), "n": len(right)}, right)


def _fewshot(cell: Cell, clf: Classifier) -> Measured:
    """Ridge on frozen features of ten images a class; the mean of three seeds, the same ones for every arm."""
    dataset = open_once(cell.fewshot_data)
    train = dataset.splits["train"]
    assert isinstance(train, Source)
    drawn = _some_of_each_class(train)
    task = FewshotTask(cell.fewshot_data, _features(clf, drawn), _features(clf, test_images(dataset)))
    rounds = fewshot([task], shots=(SHOTS,), seeds=DRAWINGS)
    right = np.stack([found.right for found in rounds])
    return Measured({"accuracy": float(right.mean()), "n": right.shape[1]}, right[0])


def _some_of_each_class(train: Source) -> Source:
    """Enough to draw from several times: the features of all images would take longer than the training."""
    targets = train.targets()
    rows = [np.flatnonzero(targets == label)[: 10 * SHOTS] for label in range(len(train.classes))]
    return train.subset(np.sort(np.concatenate(rows)), train.split)


def _features(clf: Classifier, data: Source) -> Features:
    return compute_features(clf, data, workers=0, cache=False)


def _distance(cell: Cell, clf: Classifier) -> Measured:
    """Attention distance of every head of the lowest layer, as a share of that of uniform attention."""
    dataset = open_once(str(cell.stages[-1].options["data"]))
    images = test_images(dataset)
    pixels = [np.asarray(images.read(index)) for index in range(min(LOOKED_AT, len(images)))]
    distance_LH = attention_distance(clf, pixels)
    config = clf.config
    assert isinstance(config, ViTConfig)
    shares = distance_LH / uniform_distance(config.grid, config.step, config.prefix_tokens)
    depth = {f"layer_{layer}": float(row.mean()) for layer, row in enumerate(shares)}
    lowest = {"farthest": float(shares[0].max()), "nearest": float(shares[0].min())}
    return Measured({**_test(cell, clf).values, **lowest, **depth})


_MEASURES: dict[Measure, Callable[[Cell, Classifier], Measured]] = {"test": _test, "fewshot": _fewshot, "distance": _distance}
