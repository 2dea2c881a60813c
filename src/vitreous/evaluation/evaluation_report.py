"""The report of an evaluation: every number leads to the images behind it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.classifier import Classifier
from vitreous.core.files import write_text
from vitreous.data.source import Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.accuracy import most_confused
from vitreous.evaluation.class_tables import CELLS, ConfusionTables, class_table, confusion_tables, list_pairs
from vitreous.evaluation.headline import accuracy_headline
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.label_errors import Suspect, class_names, label_errors, write_relabel
from vitreous.evaluation.majority import beats_majority
from vitreous.evaluation.mcnemar import compare_predictions
from vitreous.evaluation.predictions import Predictions
from vitreous.evaluation.report_charts import calibration_section, robustness_section
from vitreous.evaluation.report_gallery import Cell, Gallery, build_gallery, choose_images, group_cells
from vitreous.evaluation.robustness import Robustness
from vitreous.evaluation.validation_result import ValidationResult
from vitreous.inference.features import Features
from vitreous.reports.image_cards import ImageCard, Suggestion, prediction_bars
from vitreous.reports.render import render

SUSPECTS = 24
"""Likely label errors, as images; relabel.csv has all."""
DISAGREEMENTS = 12
"""Of two checkpoints, for each of the two that is correct."""
LISTED = 50
"""Images that could not be read."""
# A share of the images suspected. Well-known test sets have up to a tenth of wrong labels (Northcutt et al. 2021).
_MANY = 0.2
RELABEL = "relabel.csv"

Other = tuple[str, Predictions, Mapping[str, Any]]


@dataclass(frozen=True)
class GalleryCell:
    """The images of one cell of the confusion matrix."""

    anchor: str
    truth: str
    predicted: str
    correct: bool
    count: int
    cards: Sequence[ImageCard]


@dataclass(frozen=True)
class LabelErrors:
    count: int
    many: bool
    """So many that they are rather the model's own errors."""
    relabel: str | None
    """Why relabel.csv cannot be read as a manifest, if it cannot."""
    cards: Sequence[ImageCard]


@dataclass(frozen=True)
class ComparisonRow:
    name: str
    top1: float
    interval: tuple[float, float]
    loss: float
    correct_alone: int
    cards: Sequence[ImageCard]
    """Images that only this checkpoint classifies correctly."""


@dataclass(frozen=True)
class ComparisonSection:
    name: str
    summary: str
    rows: Sequence[ComparisonRow]


def write_report(
    folder: Path,
    clf: Classifier,
    data: Source | Stream,
    answers: Predictions,
    numbers: Mapping[str, Any],
    *,
    others: Sequence[Other] = (),
    training: Features | None = None,
    training_data: Source | Stream | None = None,
    robustness: Robustness | None = None,
    preprocess: Preprocess | None = None,
    device: torch.device | str = "cpu",
) -> Path:
    """Writes `report.html` and `relabel.csv` in the folder, each whole.

    `numbers` is what `evaluation.json` has. `training` are features of the training images by the same model and
    preprocessing, and `training_data` where their images are. `others` are further checkpoints on the same data, by name.
    """
    names = _names(answers)
    suspects = label_errors(answers, training)
    relabel = write_relabel(folder / RELABEL, data, answers, suspects)
    outcome, there = _outcome(answers, names)
    cells = group_cells(answers)
    shown = choose_images(cells, [(truth, guess) for truth, guess, _ in most_confused(answers)] if len(there) > CELLS else None)
    wrong, correct = ([rows for cell, rows in shown.items() if (cell[0] == cell[1]) == same] for same in (False, True))
    # Where room or time ends, the last do without.
    wanted = [
        *_in_turns(wrong),
        *(suspect.row for suspect in suspects[:SUSPECTS]),
        *(row for other in others for rows in _disagreements(answers, other[1]) for row in rows[:DISAGREEMENTS]),
        *_in_turns(correct),
    ]
    images = build_gallery(
        clf,
        data,
        answers,
        wanted,
        names=names,
        preprocess=preprocess,
        device=device,
        training=training,
        training_data=training_data,
    )
    counts, majority = answers.counts, numbers.get("majority")
    gallery_cells = [
        GalleryCell(_anchor(cell), names[cell[0]], names[cell[1]], cell[0] == cell[1], len(cells[cell]), [*cards.values()])
        for cell in sorted(shown, key=lambda cell: (cell[0] == cell[1], -len(cells[cell]), cell))
        if (cards := images.cards(shown[cell]))
    ]
    page = render(
        "evaluation.html",
        title=f"{numbers.get('checkpoint', clf.config.name)} on {answers.where} ({answers.split})",
        verdict=accuracy_headline(
            counts.top1, counts.n, answers.split, _interval(answers, numbers), numbers.get("top5"), majority
        ),
        verdict_style="plain" if majority is None or beats_majority(counts.top1, majority) else "bad",
        facts=_facts(answers, numbers, len(there)),
        split=answers.split,
        n=counts.n,
        confusion=_confusion(answers, names, outcome, there, {cell.anchor for cell in gallery_cells}),
        gallery=gallery_cells,
        images_shown=sum(len(cell.cards) for cell in gallery_cells),
        images_count=sum(len(rows) for rows in cells.values()),
        has_attention=bool(images.attention),
        has_neighbours=training is not None,
        label_errors=LabelErrors(
            len(suspects), len(suspects) > _MANY * counts.n, relabel, _suspect_cards(images, suspects[:SUSPECTS])
        ),
        classes=class_table(outcome),
        calibration=calibration_section(numbers),
        robustness=robustness_section(robustness) if robustness is not None else None,
        comparisons=[_comparison(images, numbers, other) for other in others],
        unread=answers.bad[:LISTED],
        unread_count=len(answers.bad),
        relabel_file=RELABEL,
        commands=_commands(answers, numbers, bool(suspects) and relabel is None, training, robustness, others),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def _facts(answers: Predictions, numbers: Mapping[str, Any], classes: int) -> str:
    counts = answers.counts
    parts = [f"{classes:,} classes", f"loss {counts.loss:.4g}"]
    if isinstance(ece := numbers.get("ece"), float):
        parts.append(f"calibration error {100 * ece:.2f} %")
    if counts.unlabelled:
        parts.append(f"{counts.unlabelled:,} images without a label that counts left out")
    if answers.bad:
        parts.append(f"{len(answers.bad):,} images could not be read")
    if answers.seconds > 0:
        parts.append(f"{len(answers) / answers.seconds:,.0f} images per second")
    return ", ".join(parts) + "."


def _confusion(
    answers: Predictions, names: Mapping[int, str], outcome: ValidationResult, there: Sequence[int], anchors: set[str]
) -> ConfusionTables:
    """With links to the cells that have images on the page."""

    def link(truth: int, guess: int) -> str | None:
        anchor = _anchor((truth, guess))
        return anchor if anchor in anchors else None

    tables = confusion_tables(outcome, lambda truth, guess: link(there[truth], there[guess]))
    if tables is not None:
        return tables
    # Too many classes for a matrix in memory.
    classes = [names[k] for k in range(len(answers.classes))]
    return ConfusionTables(
        classes, [], list_pairs(classes, most_confused(answers), [c.n for c in answers.counts.per_class()], link)
    )


def _suspect_cards(images: Gallery, suspects: Sequence[Suspect]) -> list[ImageCard]:
    cards = images.cards(suspect.row for suspect in suspects)
    made = []
    for suspect in suspects:
        about = f"margin {suspect.margin:.2f}"
        if (votes := suspect.neighbours) is not None:
            about += f"; of {votes.asked} neighbours {votes.suggested} say so, {votes.own} say as labelled"
        if suspect.row in cards:
            made.append(replace(cards[suspect.row], suggestion=Suggestion(images.names[suspect.suggested], about)))
    return made


def _comparison(images: Gallery, numbers: Mapping[str, Any], compared_with: Other) -> ComparisonSection:
    answers = images.answers
    name, other, other_numbers = compared_with
    row_of = _row_of(other)

    def cards(rows: Sequence[int]) -> list[ImageCard]:
        made = []
        for row, card in images.cards(rows[:DISAGREEMENTS]).items():
            at = row_of[int(answers.numbers[row])]
            top = zip(other.top[at, :3].tolist(), other.probabilities[at, :3].tolist(), strict=True)
            made.append(
                replace(card, other=(name, prediction_bars((other.classes[k], p, k in other.labels[at]) for k, p in top)))
            )
        return made

    summary = compare_predictions(answers, other).sentence("this one", name)
    rows = [
        ComparisonRow(who, of.counts.top1, _interval(of, about), of.counts.loss, len(alone), cards(alone))
        for (who, of, about), alone in zip(
            (("this one", answers, numbers), (name, other, other_numbers)), _disagreements(answers, other), strict=True
        )
    ]
    return ComparisonSection(name, summary[:1].upper() + summary[1:], rows)


def _commands(
    answers: Predictions,
    numbers: Mapping[str, Any],
    relabels: bool,
    training: Features | None,
    robustness: Robustness | None,
    others: Sequence[Other],
) -> list[str]:
    checkpoint, data = shlex.quote(str(numbers.get("checkpoint", "CHECKPOINT"))), shlex.quote(answers.where)
    evaluate = f"vitreous evaluate {checkpoint} {data}"
    lines = []
    if relabels:
        lines.append(f"vitreous evaluate {checkpoint} {RELABEL}    # after filling in new_label")
    if training is None:
        lines.append(f"{evaluate} --nearest TRAINING_DATA --out DIR    # which training images the mistakes resemble")
    if robustness is None:
        lines.append(f"{evaluate} --robustness --out DIR    # accuracy under blur, brightness changes, downscaling")
    if not others:
        lines.append(f"{evaluate} --compare OTHER --out DIR    # is another checkpoint better")
    lines.append(f"vitreous doctor {data} --against TRAINING_DATA --out DIR    # are test images in the training data")
    return lines


def _interval(answers: Predictions, numbers: Mapping[str, Any]) -> tuple[float, float]:
    """By the method that was asked for, if the numbers tell."""
    low, high = numbers.get("interval") or wilson(answers.counts.top1, answers.counts.n)
    return low, high


def _names(answers: Predictions) -> dict[int, str]:
    """As the model calls its classes; as the data does where the model has only numbers."""
    theirs = class_names(answers)
    return {k: theirs[k] if name == str(k) else name for k, name in enumerate(answers.classes)}


def _outcome(answers: Predictions, names: Mapping[int, str]) -> tuple[ValidationResult, tuple[int, ...]]:
    """Over the classes that occur, as a label or as a guess: a model of a thousand classes may be evaluated on ten."""
    counts, every = answers.counts, answers.counts.per_class()
    used = {k for k, row in enumerate(every) if row.n} | set(answers.top[answers.labelled(), 0].tolist())
    there = tuple(sorted(used))
    whole = counts.confusion
    confusion: NDArray[np.int64] = np.zeros((0, 0), np.int64)
    if whole is not None:
        confusion = whole.numpy()[np.ix_(there, there)]
    return ValidationResult(
        split=answers.split,
        classes=tuple(names[k] for k in there),
        confusion=confusion,
        top1=counts.top1,
        top5=counts.top5,
        n=counts.n,
        loss=counts.loss,
        mistakes=(),
        per_class=tuple(every[k] for k in there),
    ), there


def _disagreements(mine: Predictions, other: Predictions) -> tuple[list[int], list[int]]:
    """Rows that only this one, and that only the other classifies correctly; where the wrong one was surest first."""
    row_of = _row_of(other)
    correct, theirs = mine.right(), other.right()
    found: tuple[list[tuple[float, int]], list[tuple[float, int]]] = ([], [])
    for row, number in enumerate(mine.numbers.tolist()):
        at = row_of.get(number)
        if at is None or not mine.labels[row] or not other.labels[at] or correct[row] == theirs[at]:
            continue
        wrong_one = other.probabilities[at, 0] if correct[row] else mine.probabilities[row, 0]
        found[0 if correct[row] else 1].append((-float(wrong_one), row))
    first, second = ([row for _, row in sorted(part)] for part in found)
    return first, second


def _row_of(answers: Predictions) -> dict[int, int]:
    """Rows by the number of the image in its data set."""
    return {number: row for row, number in enumerate(answers.numbers.tolist())}


def _in_turns(cells: Sequence[Sequence[int]]) -> Iterator[int]:
    """The first of each, then the second of each."""
    return (row for turn in itertools.zip_longest(*cells) for row in turn if row is not None)


def _anchor(cell: Cell) -> str:
    return f"cell-{cell[0]}-{cell[1]}"
