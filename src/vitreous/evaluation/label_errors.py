"""Find likely label errors by confident learning, and write a table to re-label from.

Confident learning (Northcutt and others, 2021). What "sure" means depends on the class: its threshold is the mean probability
that the model gives it on the images which carry its label. An image is suspected where the most likely of the classes that
pass their thresholds is none of its own, and likelier than its own. The margin, by which it is likelier, ranks them.

Of each image the five top classes are known, and the probability of its own label. That is enough: a class beyond them
has at most a sixth of a softmax's probability, and would be suggested only where none of the five passes its threshold.

Only for images the model was not trained on: of those it was, it has learned the wrong labels too.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_file
from vitreous.core.printable import escape_formula
from vitreous.data.source import ALL, Source, Stream
from vitreous.data.sources.manifest import check_expressible, relative_path
from vitreous.evaluation.class_mapping import fold_name
from vitreous.evaluation.predictions import Predictions
from vitreous.inference.features import Features
from vitreous.inference.nearest_neighbours import nearest_neighbours

NEIGHBOURS = 10  # training images that are asked
ASKED = 2000  # suspects for which they are; the ones with the smallest margins get along without
COLUMNS = ("path", "label", "new_label", "suggested", "confidence", "margin", "neighbours", "split", "id")


class Neighbours(NamedTuple):
    """How many of the nearest training images have which label."""

    suggested: int
    own: int
    asked: int

    @property
    def margin(self) -> float:
        return (self.suggested - self.own) / self.asked


@dataclass(frozen=True)
class Suspect:
    row: int  # of the predictions
    given: tuple[int, ...]
    suggested: int
    confidence: float  # probability of the suggested class
    margin: float  # by how much it is likelier than the image's own
    neighbours: Neighbours | None = None

    @property
    def score(self) -> float:
        """By which they are ranked, at most 1: the margin, or its mean with what the neighbours say."""
        return self.margin if self.neighbours is None else (self.margin + self.neighbours.margin) / 2


def thresholds(predictions: Predictions) -> NDArray[np.float64]:
    """For each class, the mean probability of the images that carry its label; infinite where there are none.

    Of an image with several labels the most likely one's probability is known; it counts for all of them, which makes the
    thresholds higher rather than lower.
    """
    known = [row for row, own in enumerate(predictions.labels) if own and np.isfinite(predictions.truth[row])]
    pairs = [(label, float(predictions.truth[row])) for row in known for label in set(predictions.labels[row])]
    labels, values = zip(*pairs, strict=True) if pairs else ((), ())
    counts = np.bincount(np.array(labels, np.int64), minlength=len(predictions.classes))
    sums = np.bincount(np.array(labels, np.int64), values, len(predictions.classes))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, sums / counts, np.inf)


def label_errors(predictions: Predictions, training: Features | None = None) -> list[Suspect]:
    """The suspects, the most likely errors first. With `training` and features of the images, neighbours are asked too."""
    passed = thresholds(predictions)[predictions.top] <= predictions.probabilities
    found = []
    for row, own in enumerate(predictions.labels):
        best = int(passed[row].argmax())  # the most likely come first
        if not own or not passed[row, best] or int(predictions.top[row, best]) in own:
            continue
        confidence = float(predictions.probabilities[row, best])
        margin = confidence - float(predictions.truth[row])
        if margin > 0:  # an own label that is likelier, but below a high threshold, is no reason to suspect it
            found.append(Suspect(row, own, int(predictions.top[row, best]), confidence, margin))
    found.sort(key=lambda suspect: (-suspect.margin, suspect.row))
    if training is not None and predictions.features is not None and found and len(training):
        asked = _with_neighbours(found[:ASKED], predictions, training, predictions.features)
        found = sorted([*asked, *found[ASKED:]], key=lambda suspect: (-suspect.score, suspect.row))
    return found


def _with_neighbours(
    suspects: Sequence[Suspect], predictions: Predictions, training: Features, features: NDArray[np.float32]
) -> list[Suspect]:
    """Training images may have their classes' names from the model or from the data, which need not call them the same."""
    near = nearest_neighbours(features[[suspect.row for suspect in suspects]], training.values, NEIGHBOURS)
    known = [{fold_name(training.classes[label]) for label in own} for own in training.labels]
    called = [{fold_name(name)} for name in predictions.classes]
    for name, numbers in zip(predictions.mapping.data, predictions.mapping.to, strict=True):
        for number in numbers:
            called[number].add(fold_name(name))

    def having(rows: NDArray[np.int64], labels: Iterable[int]) -> int:
        names = {name for label in labels for name in called[label]}
        return sum(not known[row].isdisjoint(names) for row in rows.tolist())

    return [
        replace(suspect, neighbours=Neighbours(having(rows, (suspect.suggested,)), having(rows, suspect.given), len(rows)))
        for suspect, rows in zip(suspects, near.rows, strict=True)
    ]


# A table to re-label from -----------------------------------------------------------------------------------------------------


def write_relabel(path: Path, data: Source | Stream, predictions: Predictions, suspects: Sequence[Suspect]) -> str | None:
    """Every image of the split, the suspects first: a manifest, so that with `new_label` filled in it is data again.

    Names are the data's own, where the model calls its classes otherwise. What comes back is why it cannot be read as a
    manifest, if it cannot: the table then says which images they are and no more.
    """
    named = class_names(predictions)
    first = {suspect.row: suspect for suspect in suspects}
    rows = [*first, *(row for row in range(len(predictions.ids)) if row not in first)]
    base = path.parent.resolve()
    files = True
    # With a mark that it is UTF-8, without which spreadsheets spoil what is not English, and save it so.
    with atomic_file(path) as part, part.open("w", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in rows:
            place = _path(data, int(predictions.numbers[row]), base)
            files = files and bool(place)
            writer.writerow((place, *_cells(predictions, row, first.get(row), named)))
    if not files:
        return "these images are not files of their own"
    try:
        check_expressible(path, predictions.mapping.data or named.values(), (predictions.split,))
    except VitreousError as error:
        return str(error).partition(": ")[2].rpartition("; ")[0]
    return None


def class_names(predictions: Predictions) -> dict[int, str]:
    """What the data calls the model's classes; of several of its classes that one class of the model stands for, the first."""
    names = dict(enumerate(predictions.classes))
    for name, numbers in reversed(list(zip(predictions.mapping.data, predictions.mapping.to, strict=True))):
        names |= dict.fromkeys(numbers, name)
    return names


def _cells(predictions: Predictions, row: int, suspect: Suspect | None, named: dict[int, str]) -> Iterator[str]:
    known = bool(predictions.given and predictions.mapping.data)
    own, names = (predictions.given, predictions.mapping.data) if known else (predictions.labels, named)
    yield _label(";".join(names[label] for label in own[row]))
    yield ""  # new_label: theirs to fill in
    if suspect is None:
        yield from ("", "", "", "")
    else:
        votes = "" if suspect.neighbours is None else f"{suspect.neighbours.margin:.2f}"
        yield from (_label(named[suspect.suggested]), f"{suspect.confidence:.4f}", f"{suspect.margin:.4f}", votes)
    yield from ("" if predictions.split == ALL else predictions.split, escape_formula(predictions.ids[row]))


def _path(data: Source | Stream, number: int, base: Path) -> str:
    """Relative to the table, as a manifest's paths are."""
    path = data.path(number) if isinstance(data, Source) else None
    return "" if path is None else escape_formula(relative_path(path, base), "./")


def _label(name: str) -> str:
    """A manifest's reader takes the space away again."""
    return escape_formula(name, " ")
