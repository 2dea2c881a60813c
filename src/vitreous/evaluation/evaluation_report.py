"""The report of an evaluation: every number leads to the images behind it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.classifier import Classifier
from vitreous.core.files import write_text
from vitreous.data.source import Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.class_tables import CELLS, Cell, class_table, confusion_tables, rank_confusions
from vitreous.evaluation.evaluation_result import describe_changes
from vitreous.evaluation.headline import accuracy_headline
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.label_errors import Suspect, class_names, label_errors, write_relabel
from vitreous.evaluation.majority import beats_majority
from vitreous.evaluation.mcnemar import compare_predictions, shared_rows
from vitreous.evaluation.predictions import Predictions
from vitreous.evaluation.report_charts import calibration_section, robustness_section
from vitreous.evaluation.report_gallery import Gallery, build_gallery, choose_images, group_cells
from vitreous.evaluation.robustness import Robustness
from vitreous.inference.features import Features
from vitreous.reports.image_cards import ImageCard
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


def write_evaluation_report(
    folder: Path,
    clf: Classifier,
    data: Source | Stream,
    predictions: Predictions,
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
    names = _names(predictions)
    suspects = label_errors(predictions, training)
    relabel = write_relabel(folder / RELABEL, data, predictions, suspects)
    counts, per_class, majority = predictions.counts, predictions.counts.per_class(), numbers.get("majority")
    # A model of a thousand classes may be evaluated on ten: only those that occur, as a label or as a prediction.
    guessed = set(predictions.top[predictions.labelled(), 0].tolist())
    used = [k for k, row in enumerate(per_class) if row.n or k in guessed]
    cells = group_cells(predictions)
    counted = {cell: len(rows) for cell, rows in cells.items()}
    shown = choose_images(cells, rank_confusions(counted) if len(used) > CELLS else None)
    wrong, correct = ([rows for cell, rows in shown.items() if (cell[0] == cell[1]) == same] for same in (False, True))
    disagreements = [rows for _, other, _ in others for rows in _disagreements(predictions, other)]
    # Where room or time ends, the last do without.
    by_importance = [
        *_in_turns(wrong),
        *(suspect.row for suspect in suspects[:SUSPECTS]),
        *(row for rows in disagreements for row in rows[:DISAGREEMENTS]),
        *_in_turns(correct),
    ]
    images = build_gallery(
        clf,
        data,
        predictions,
        by_importance,
        names=names,
        preprocess=preprocess,
        device=device,
        training=training,
        training_data=training_data,
    )
    cards = {cell: [*images.cards(rows).values()] for cell, rows in shown.items()}
    order = sorted((cell for cell in cards if cards[cell]), key=lambda cell: (cell[0] == cell[1], -counted[cell], cell))
    page = render(
        "evaluation.html",
        title=f"{numbers.get('checkpoint', clf.config.name)} on {predictions.where} ({predictions.split})",
        verdict=accuracy_headline(
            counts.top1, counts.n, predictions.split, _interval(predictions, numbers), numbers.get("top5"), majority
        ),
        verdict_style="plain" if majority is None or beats_majority(counts.top1, majority) else "bad",
        facts=_facts(predictions, numbers, len(used)),
        split=predictions.split,
        n=counts.n,
        confusion=confusion_tables(
            {k: names[k] for k in used}, counted, lambda cell: _anchor(cell) if cards.get(cell) else None
        ),
        gallery=[(_anchor(cell), names[cell[0]], names[cell[1]], counted[cell], cards[cell]) for cell in order],
        images_shown=sum(map(len, cards.values())),
        images_count=sum(counted.values()),
        has_attention=bool(images.attention),
        has_neighbours=training is not None,
        suspects=len(suspects),
        suspect_cards=_suspect_cards(images, suspects[:SUSPECTS]),
        many_suspects=len(suspects) > _MANY * counts.n,
        relabel_file=RELABEL,
        relabel_refused=relabel,
        classes=class_table([names[k] for k in used], [per_class[k] for k in used]),
        calibration=calibration_section(numbers),
        robustness=robustness_section(robustness) if robustness is not None else None,
        comparisons=[_compare(images, numbers, other) for other in others],
        unread=predictions.bad[:LISTED],
        unread_count=len(predictions.bad),
        commands=_commands(predictions, numbers, bool(suspects) and relabel is None, training, robustness, others),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def _facts(predictions: Predictions, numbers: Mapping[str, Any], classes: int) -> str:
    counts, bad, ece = predictions.counts, len(predictions.bad), numbers.get("ece")
    parts = {
        f"{classes:,} classes": True,
        **dict.fromkeys(describe_changes(numbers).values(), True),
        f"loss {counts.loss:.4g}": True,
        f"calibration error {100 * (ece or 0):.2f} %": ece is not None,
        f"{counts.unlabelled:,} images without a label that counts left out": counts.unlabelled,
        f"{bad:,} images could not be read": bad,
        f"{len(predictions) / (predictions.seconds or 1):,.0f} images per second": predictions.seconds > 0,
    }
    return ", ".join(part for part, known in parts.items() if known) + "."


def _suspect_cards(images: Gallery, suspects: Sequence[Suspect]) -> list[ImageCard]:
    cards = images.cards(suspect.row for suspect in suspects)
    made = []
    for suspect in suspects:
        about = f"margin {suspect.margin:.2f}"
        if (votes := suspect.neighbours) is not None:
            about += f"; of {votes.asked} neighbours {votes.suggested} say so, {votes.own} say as labelled"
        if suspect.row in cards:
            made.append(replace(cards[suspect.row], suggestion=(images.names[suspect.suggested], about)))
    return made


def _compare(images: Gallery, numbers: Mapping[str, Any], compared_with: Other) -> dict[str, Any]:
    """Both checkpoints' results, and the images that only one of them classifies correctly."""
    name, other, other_numbers = compared_with
    row_of = dict(zip(*(rows.tolist() for rows in shared_rows(images.predictions, other)), strict=True))

    def cards(rows: Sequence[int]) -> list[ImageCard]:
        found = images.cards(rows[:DISAGREEMENTS])
        return [replace(card, other=(name, other.best(row_of[row], other.classes, 3))) for row, card in found.items()]

    rows = [
        (who, of.counts.top1, _interval(of, about), of.counts.loss, len(alone), cards(alone))
        for (who, of, about), alone in zip(
            (("this one", images.predictions, numbers), (name, other, other_numbers)),
            _disagreements(images.predictions, other),
            strict=True,
        )
    ]
    return {"name": name, "rows": rows, "summary": compare_predictions(images.predictions, other).sentence("this one", name)}


def _commands(
    predictions: Predictions,
    numbers: Mapping[str, Any],
    relabels: bool,
    training: Features | None,
    robustness: Robustness | None,
    others: Sequence[Other],
) -> list[str]:
    checkpoint, data = shlex.quote(str(numbers.get("checkpoint", "CHECKPOINT"))), shlex.quote(predictions.where)
    evaluate = f"vitreous evaluate {checkpoint} {data}"
    lines = {
        f"vitreous evaluate {checkpoint} {RELABEL}    # after filling in new_label": relabels,
        f"{evaluate} --nearest TRAINING_DATA --out DIR    # which training images the mistakes resemble": training is None,
        f"{evaluate} --robustness --out DIR    # accuracy under blur, brightness changes, downscaling": robustness is None,
        f"{evaluate} --compare OTHER --out DIR    # is another checkpoint better": not others,
        f"vitreous doctor {data} --against TRAINING_DATA --out DIR    # are test images in the training data": True,
    }
    return [line for line, useful in lines.items() if useful]


def _interval(predictions: Predictions, numbers: Mapping[str, Any]) -> tuple[float, float]:
    """By the method that was asked for, if the numbers tell."""
    low, high = numbers.get("interval") or wilson(predictions.counts.top1, predictions.counts.n)
    return low, high


def _names(predictions: Predictions) -> dict[int, str]:
    """As the model calls its classes; as the data does where the model has only numbers."""
    theirs = class_names(predictions)
    return {k: theirs[k] if name == str(k) else name for k, name in enumerate(predictions.classes)}


def _disagreements(mine: Predictions, other: Predictions) -> tuple[list[int], list[int]]:
    """Rows that only this one, and that only the other classifies correctly; where the wrong one was surest first."""
    ours, theirs = shared_rows(mine, other)
    correct, also = mine.right()[ours], other.right()[theirs]
    sure = np.where(correct, other.probabilities[theirs, 0], mine.probabilities[ours, 0])
    order = np.lexsort((ours, -sure))
    first, second = (ours[order[chosen[order]]].tolist() for chosen in (correct & ~also, also & ~correct))
    return first, second


def _in_turns(cells: Sequence[Sequence[int]]) -> Iterator[int]:
    """The first of each, then the second of each."""
    return (row for turn in itertools.zip_longest(*cells) for row in turn if row is not None)


def _anchor(cell: Cell) -> str:
    return f"cell-{cell[0]}-{cell[1]}"
