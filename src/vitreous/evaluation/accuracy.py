"""Compute the metrics of `evaluate --json` from predictions."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.core.errors import VitreousError, first_few
from vitreous.data.datasets.real_labels import apply_real_labels, read_real_labels
from vitreous.data.source import Source, Stream
from vitreous.data.sources.arrays import Arrays
from vitreous.evaluation.calibration import compute_calibration
from vitreous.evaluation.class_tables import PAIRS, rank_confusions
from vitreous.evaluation.intervals import Method, mean_recall_interval, share_interval
from vitreous.evaluation.majority import majority_rate
from vitreous.evaluation.predictions import Predictions, classes_there, repeated_names

_ENOUGH = 50  # images by which to tell whether ReaL labels are of the same classes


def compute_metrics(predictions: Predictions, *, method: Method = "wilson", seed: int = 0) -> dict[str, Any]:
    """What `evaluate --json` tells of one checkpoint. Shares are from 0 to 1; None where there is nothing to tell."""
    counts, labelled = predictions.counts, predictions.labelled()
    if not counts.n:
        raise VitreousError(_explain_no_labels(predictions))
    given = (given for given, own in zip(predictions.given, predictions.labels, strict=True) if own)
    _check_classes(predictions.where, predictions.split, len(set(itertools.chain.from_iterable(given))))
    right = predictions.right()[labelled]
    sure = compute_calibration(predictions.probabilities[labelled, 0], right)
    top5 = counts.top5 if predictions.mapping.competing > 5 else None
    every = counts.per_class()
    there = [row for row in every if row.n]
    mean = {name: sum(getattr(row, name) for row in there) / len(there) for name in ("precision", "recall", "f1")}
    own_classes = _recall_by_data_class(predictions) if any(len(own) > 1 for own in predictions.mapping.to) else []
    if own_classes:  # an image cannot be taken for all of its model classes, so that their recall says little
        mean["recall"] = sum(row["recall"] for row in own_classes) / len(own_classes)
    intervals = {"top1": share_interval(int(right.sum()), counts.n, method, seed)}
    if top5 is not None:
        intervals["top5"] = share_interval(round(top5 * counts.n), counts.n, method, seed)
    if own_classes or all(len(own) < 2 for own in predictions.labels):
        recalls = [(row["recall"], row["n"]) for row in own_classes] or [(row.recall, row.n) for row in every]
        hits, counted = (np.array(column) for column in zip(*((round(recall * n), n) for recall, n in recalls), strict=True))
        intervals["mean_recall"] = mean_recall_interval(hits, counted, seed)
    mapped_away = sum(bool(given) and not own for given, own in zip(predictions.given, predictions.labels, strict=True))
    return {
        "data": predictions.where,
        "split": predictions.split,
        "n": counts.n,
        "top1": counts.top1,
        "top5": top5,
        "majority": majority_rate([row.n for row in every], n=counts.n),
        "interval": list(intervals["top1"]),
        "interval_method": method,
        "intervals": {name: list(ends) for name, ends in intervals.items()},
        "loss": counts.loss,
        "mean_per_class": mean,
        "ece": sure.ece,
        "ece_equal_mass": sure.ece_equal_mass,
        "brier": sure.brier,
        "confidence": sure.confidence,
        "reliability": [*sure.bins],
        "unlabelled": counts.unlabelled - mapped_away,
        "mapped_to_nothing": mapped_away,
        "bad": [{"place": place, "why": why} for place, why in predictions.bad],
        "seconds": predictions.seconds,
        "images_per_second": len(predictions) / predictions.seconds if predictions.seconds else None,
        "model_images_per_second": len(predictions) / predictions.model_seconds if predictions.model_seconds else None,
        "confused": [
            {"class": predictions.classes[truth], "taken_for": predictions.classes[guess], "n": n}
            for truth, guess, n in most_confused(predictions)
        ],
        "per_class": [{"class": name, **row._asdict()} for name, row in zip(predictions.classes, every, strict=True)],
        **({"per_data_class": own_classes} if own_classes else {}),
        "classes": list(predictions.classes),
        "confusion": None if counts.confusion is None else counts.confusion.tolist(),
    }


def most_confused(predictions: Predictions, most: int = PAIRS) -> list[tuple[int, int, int]]:
    """(true class, predicted class, images), the most images first; from the rows, for any number of classes."""
    guesses = predictions.top[:, 0].tolist()
    cells = Counter((own[0], guess) for own, guess in zip(predictions.labels, guesses, strict=True) if own)
    return [(*cell, cells[cell]) for cell in rank_confusions(cells, most)]


def worst_classes(numbers: Mapping[str, Any], most: int = 5) -> list[Mapping[str, Any]]:
    """With the lowest F1, of those that have images; of equals the larger first."""
    there = [row for row in numbers["per_class"] if row["n"]]
    return sorted(there, key=lambda row: (row["f1"], -row["n"]))[:most]


# Bad input -------------------------------------------------------------------------------------------------------------


def check_data(data: Source | Stream, real: Path | None = None) -> None:
    """What can be checked before the model has run for an hour."""
    if real is not None and isinstance(data, Source):
        _check_order(_attach_real_labels(data, real), [data.labels(index) for index in range(len(data))])
    elif real is not None:
        read_real_labels(real)
    there = classes_there(data)
    if not isinstance(data, Source) or there is None:
        return
    if not len(data):
        raise VitreousError(f"{data.where} {data.split}: there are no images in this split")
    if not there:
        raise VitreousError(f"{data.where} {data.split}: no image has a label; put them into class folders, or list them")
    _check_classes(data.where, data.split, len(there))


def _check_classes(where: str, split: str, different: int) -> None:
    if different < 2:
        raise VitreousError(
            f"{where} {split}: all images have the same class, so that a model which always names it would be perfect; "
            f"add images of other classes, or look at these with `vitreous predict`"
        )


def _explain_no_labels(predictions: Predictions) -> str:
    if any(predictions.given):
        return f"{predictions.where} {predictions.split}: no image has a class that maps to one of the model's; fix the mapping"
    bad = f"; {len(predictions.bad):,} could not be read" if predictions.bad else ""
    return f"{predictions.where} {predictions.split}: there is no labelled image to evaluate on{bad}"


# Several classes for one -----------------------------------------------------------------------------------------------


def _recall_by_data_class(predictions: Predictions) -> list[dict[str, Any]]:
    """Where a data class is several of the model's: the recall of the data's own classes, which `per_class` cannot tell."""
    n, hits = (np.zeros(len(predictions.mapping.data), np.int64) for _ in range(2))
    for given, own, guess in zip(predictions.given, predictions.labels, predictions.top[:, 0].tolist(), strict=True):
        for label in given if own else ():
            n[label] += 1
            hits[label] += guess in predictions.mapping.to[label]
    return [
        {"class": name, "model_classes": [predictions.classes[k] for k in to], "recall": int(hit) / int(count), "n": int(count)}
        for name, to, hit, count in zip(predictions.mapping.data, predictions.mapping.to, hits, n, strict=True)
        if count
    ]


# ReaL ------------------------------------------------------------------------------------------------------------------


def real_accuracy(predictions: Predictions, path: Path, *, method: Method = "wilson", seed: int = 0) -> dict[str, Any]:
    """Top 1 by the reassessed labels (PAPER 5): right if the prediction is one of them; an image that has none is left out."""
    blank = np.zeros((len(predictions), 1, 1), np.uint8)
    ours = Arrays(
        predictions.where, predictions.split, predictions.mapping.data, blank, np.full(len(predictions), -1), predictions.ids
    )
    source = _attach_real_labels(ours, path)
    _check_order(source, predictions.given)
    labels = [predictions.mapping.labels(source.labels(row)) for row in range(len(source))]
    right = sum(guess in own for own, guess in zip(labels, predictions.top[:, 0].tolist(), strict=True))
    n = sum(map(bool, labels))
    if not n:
        raise VitreousError(f"{path}: none of these images has a ReaL label that is a class of the model")
    return {"top1": right / n, "n": n, "interval": list(share_interval(right, n, method, seed)), "left_out": len(labels) - n}


def _attach_real_labels(source: Source, path: Path) -> Source:
    labelled = apply_real_labels(source, path)
    if twice := repeated_names(source.id(index).rpartition("/")[2] for index in range(len(source))):
        raise VitreousError(
            f"{source.where} {source.split}: {first_few(twice, 3)}: more than one image of that name, by which ReaL labels go; "
            f"remove the copies"
        )
    return labelled


def _check_order(real: Source, given: Sequence[tuple[int, ...]]) -> None:
    """ReaL labels are numbers of ImageNet's classes in the order of their synsets. Of the original labels nearly nine in ten
    are among them; of classes in another order, as folders that are named by words, one in a thousand."""
    both = [(own, real.labels(row)) for row, own in enumerate(given) if own and real.labels(row)]
    agreeing = sum(not set(own).isdisjoint(other) for own, other in both)
    if len(both) >= _ENOUGH and 2 * agreeing < len(both):
        raise VitreousError(
            f"{real.where} {real.split}: only {agreeing:,} of {len(both):,} labels are among the ReaL labels, so the classes "
            f"are not in ImageNet's order; name their folders by WordNet ids (n01440764 ...), or open them as imagenet@DIR"
        )
