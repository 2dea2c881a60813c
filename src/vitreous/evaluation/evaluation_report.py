"""An evaluation's page: from a number to the pictures behind it, by a click. One file, and it reads without its script."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.classifier import Classifier
from vitreous.core.files import write_text
from vitreous.data.source import Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.accuracy import pairs
from vitreous.evaluation.class_tables import CELLS, class_table, confusion_section, guess_bars, pairs_table
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.label_errors import Suspect, class_names, label_errors, write_relabel
from vitreous.evaluation.majority import beats_majority, majority_words
from vitreous.evaluation.mcnemar import compare_predictions
from vitreous.evaluation.predictions import Predictions
from vitreous.evaluation.report_charts import calibration_section, robustness_section
from vitreous.evaluation.report_gallery import Cell, Gallery, cells_of, choose_images, gallery
from vitreous.evaluation.robustness import Robustness
from vitreous.evaluation.validation_result import ValidationResult
from vitreous.inference.features import Features
from vitreous.reports.html import asset, page, scrolled, text

SUSPECTS = 24  # likely label errors, as pictures; relabel.csv has all
_MANY = 0.2  # of the images suspected: well-known test sets have up to a tenth of wrong labels (Northcutt and others 2021)
DISAGREEMENTS = 12  # of two checkpoints, for each of the two that is right
LISTED = 50  # images that could not be read
RELABEL = "relabel.csv"

Other = tuple[str, Predictions, Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class _Found:
    """What the sections are written from."""

    answers: Predictions
    numbers: Mapping[str, Any]
    outcome: ValidationResult  # over the classes that occur, as the data or the model names them
    there: tuple[int, ...]  # those classes, as numbers of the model's
    cells: Mapping[Cell, Sequence[int]]
    shown: Mapping[Cell, Sequence[int]]
    suspects: Sequence[Suspect]
    relabel: str | None  # why relabel.csv cannot be read as a manifest, if it cannot
    others: Sequence[Other]
    pictures: Gallery
    training: Features | None
    robustness: Robustness | None


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
    preprocessing, and `training_data` where their pictures are. `others` are further checkpoints on the same data, by name.
    """
    names = _names(answers)
    suspects = label_errors(answers, training)
    relabel = write_relabel(folder / RELABEL, data, answers, suspects)
    outcome, there = _outcome(answers, names)
    cells = cells_of(answers)
    shown = choose_images(cells, [(truth, guess) for truth, guess, _ in pairs(answers)] if len(there) > CELLS else None)
    wrong, right = ([rows for cell, rows in shown.items() if (cell[0] == cell[1]) == same] for same in (False, True))
    wanted = [
        *_in_turns(wrong),
        *(suspect.row for suspect in suspects[:SUSPECTS]),
        *(row for other in others for rows in _disagreements(answers, other[1]) for row in rows),
        *_in_turns(right),
    ]  # where room or time ends, the last do without
    pictures = gallery(
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
    found = _Found(answers, numbers, outcome, there, cells, shown, suspects, relabel, others, pictures, training, robustness)
    path = folder / "report.html"
    title = f"{numbers.get('checkpoint', clf.config.name)} on {answers.where} ({answers.split})"
    styles = (asset("assets/results.css"), asset("report.css", "vitreous.evaluation"))
    script = asset("assets/results.js") + asset("report.js", "vitreous.evaluation")
    write_text(path, page(title, "\n".join(_body(title, found)), styles=styles, script=script))
    return path


# Sections ---------------------------------------------------------------------------------------------------------------------


def _body(title: str, found: _Found) -> Iterator[str]:
    rate = found.numbers.get("majority")
    kind = "plain" if rate is None or beats_majority(found.answers.counts.top1, rate) else "bad"
    yield f'<header><h1>{text(title)}</h1><p class="verdict {kind}">{text(_headline(found))}</p>'
    yield f'<p class="quiet">{text(_facts(found))}</p></header><main>'
    for heading, name, inside in (
        ("Confusion", "confusion", _confusion(found)),
        ("Likely label errors", "labels", _label_errors(found)),
        ("Class by class", "classes", class_table(found.outcome)),
        ("Calibration", "calibration", calibration_section(found.numbers)),
        ("Robustness", "robustness", robustness_section(found.robustness)),
        *((f"Compared with {other[0]}", f"compared-{k}", _compared(found, other)) for k, other in enumerate(found.others)),
        ("Images that could not be read", "unread", _unread(found.answers)),
        ("How to go on", "next", _next(found)),
    ):
        if inside:
            yield f'<section id="{name}"><h2>{text(heading)}</h2>{inside}</section>'
    told = "Every number is in evaluation.json beside this page, every image in answers.csv."
    yield f"</main><footer>Made by vitreous {text(version('vitreous'))}. {told}</footer>"


def _headline(found: _Found) -> str:
    counts = found.answers.counts
    low, high = _interval(found.answers, found.numbers)
    share = found.numbers.get("top5")  # None where there are no more than five to choose from
    top5 = f"; {100 * share:.2f} % within five guesses" if share is not None else ""
    rate = found.numbers.get("majority")
    alone = f"; {majority_words(rate)}" if rate is not None else ""
    return (
        f"{100 * counts.top1:.2f} % of {counts.n:,} {found.answers.split} images right "
        f"(95 % interval {100 * low:.2f} to {100 * high:.2f}){top5}{alone}."
    )


def _facts(found: _Found) -> str:
    answers, counts = found.answers, found.answers.counts
    parts = [f"{len(found.there):,} classes", f"loss {counts.loss:.4g}"]
    if isinstance(ece := found.numbers.get("ece"), float):
        parts.append(f"calibration error {100 * ece:.2f} %")
    if counts.unlabelled:
        parts.append(f"{counts.unlabelled:,} images without a label that counts left out")
    if answers.bad:
        parts.append(f"{len(answers.bad):,} images could not be read")
    if answers.seconds > 0:
        parts.append(f"{len(answers) / answers.seconds:,.0f} images per second")
    return ", ".join(parts) + "."


def _confusion(found: _Found) -> str:
    pictured = {
        cell: rows for cell, every in found.shown.items() if (rows := [row for row in every if row in found.pictures.shown])
    }

    def link(cell: Cell) -> str | None:
        return _anchor(cell) if cell in pictured else None

    if found.outcome.confusion.size:
        table = confusion_section(found.outcome, lambda truth, guess: link((found.there[truth], found.there[guess])))
    else:  # too many classes for a matrix in memory
        classes = [found.pictures.names[k] for k in range(len(found.answers.classes))]
        there = [row.n for row in found.answers.counts.per_class()]
        table = pairs_table(classes, pairs(found.answers), there, lambda truth, guess: link((truth, guess)))
    if not pictured:
        return table
    count, every = (sum(len(rows) for rows in part.values()) for part in (pictured, found.cells))
    told = "Choose a cell to see its images: the wrong ones with the highest loss first, the right ones least sure first."
    if count < every:
        told += f" {count:,} of {every:,} are on this page; answers.csv has them all."
    cells = sorted(pictured, key=lambda cell: (cell[0] == cell[1], -len(found.cells[cell]), cell))
    return (
        f'<p class="quiet">{told}</p>{table}<div id="gallery" class="gallery"><div class="tools">'
        f'<p role="status" class="chosen"></p>{_toggle(found)}</div>'
        f"{''.join(_cell(found, cell, pictured[cell]) for cell in cells)}</div>"
    )


def _cell(found: _Found, cell: Cell, rows: Sequence[int]) -> str:
    truth, guess = (text(found.pictures.names[k]) for k in cell)
    count = len(found.cells[cell])
    said = f"{truth}, rightly named" if cell[0] == cell[1] else f"{truth} taken for {guess}"
    some = f", {len(rows):,} shown" if len(rows) < count else ""
    return (
        f'<details class="cell"><summary>{said}: {count:,} {_images(count)}{some}</summary>'
        f'<div id="{_anchor(cell)}" tabindex="-1">{found.pictures.cards(rows)}</div></details>'
    )


def _label_errors(found: _Found) -> str:
    count, split = len(found.suspects), found.answers.split
    if not count:
        return "<p>None: wherever the model is sure of a class, the label says so too.</p>"
    told = (
        f"{count:,} of {found.answers.counts.n:,} images, on which the model is as sure of another class as it usually is "
        "on that class’s own images. The likeliest errors first; each needs a human eye."
    )
    if count > _MANY * found.answers.counts.n:
        told += " So many are rather the model’s own errors: a better model is needed before this says much about labels."
    if split == "train":
        told += " These are training images: a model that has learned their labels finds few of the wrong ones."
    if found.training is not None:
        told += " The nearest training images have a say in the order."
    if found.relabel is None:
        told += (
            f" All of them come first in {RELABEL}. Open it, write the right class into new_label where a label is wrong, "
            f"save it as CSV, and use the file as DATA."
        )
    else:
        told += (
            f" All of them come first in {RELABEL}. It cannot be used as DATA ({found.relabel}): correct the labels where the "
            "data comes from."
        )
    by_row = {suspect.row: suspect for suspect in found.suspects[:SUSPECTS]}

    def extra(row: int) -> str:
        suspect = by_row[row]
        near = ""
        if (votes := suspect.neighbours) is not None:
            near = f"; of {votes.asked} neighbours {votes.suggested} say so, {votes.own} say as labelled"
        name = text(found.pictures.names[suspect.suggested])
        return (
            f'<p class="suggested"><span class="quiet">suggested:</span> <span class="label">{name}</span> '
            f'<span class="quiet">margin {suspect.margin:.2f}{near}</span></p>'
        )

    return f'<p class="quiet">{text(told)}</p>{_toggle(found)}{found.pictures.cards(by_row, extra)}'


def _compared(found: _Found, compared_with: Other) -> str:
    name, other, numbers = compared_with
    mine, theirs = _disagreements(found.answers, other, most=None)
    said = compare_predictions(found.answers, other).sentence("this one", name)
    table = "".join(
        f'<tr><th scope="row">{text(who)}</th><td class="number">{100 * answers.counts.top1:.2f} %</td>'
        f'<td class="number">{100 * low:.2f} to {100 * high:.2f}</td><td class="number">{answers.counts.loss:.4g}</td>'
        f'<td class="number">{alone:,}</td></tr>'
        for who, answers, about, alone in (
            ("this one", found.answers, found.numbers, len(mine)),
            (name, other, numbers, len(theirs)),
        )
        for low, high in [_interval(answers, about)]
    )
    head = "".join(
        f'<th scope="col" class="number">{title}</th>' for title in ("top 1", "95 % interval", "loss", "right alone")
    )
    rows = dict(zip(other.numbers.tolist(), range(len(other)), strict=True))

    def extra(row: int) -> str:
        at = rows[int(found.answers.numbers[row])]
        guesses = [
            (other.classes[int(k)], float(p), int(k) in other.labels[at])
            for k, p in zip(other.top[at, :3], other.probabilities[at, :3], strict=True)
        ]
        return f'<span class="quiet">{text(name)}:</span>{guess_bars(guesses)}'

    parts = [
        f"<p>{text(said[:1].upper() + said[1:])}.</p>",
        scrolled("two checkpoints", f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{table}</tbody></table>"),
    ]
    if mine or theirs:
        parts.append(_toggle(found))
    for title, every in (("Only this one is right", mine), (f"Only {name} is right", theirs)):
        if every:
            kept = every[:DISAGREEMENTS]
            parts.append(
                f"<details><summary>{text(title)}: {len(every):,} {_images(len(every))}, {len(kept)} shown</summary>"
                f"{found.pictures.cards(kept, extra)}</details>"
            )
    return "".join(parts)


def _unread(answers: Predictions) -> str:
    if not answers.bad:
        return ""
    rows = "".join(f"<li>{text(place)}: {text(why)}</li>" for place, why in answers.bad[:LISTED])
    more = f"<p>{len(answers.bad) - LISTED:,} more in evaluation.json.</p>" if len(answers.bad) > LISTED else ""
    return f'<ul class="paths">{rows}</ul>{more}'


def _next(found: _Found) -> str:
    checkpoint = shlex.quote(str(found.numbers.get("checkpoint", "CHECKPOINT")))
    data = shlex.quote(found.answers.where)
    lines = []
    if found.suspects and found.relabel is None:
        lines.append(f"vitreous evaluate {checkpoint} {RELABEL}    # after filling in new_label")
    if found.training is None:
        lines.append(f"vitreous evaluate {checkpoint} {data} --nearest TRAINING_DATA --out DIR    # what mistakes resemble")
    if found.robustness is None:
        lines.append(
            f"vitreous evaluate {checkpoint} {data} --robustness --out DIR    # how it stands blur, light, small pictures"
        )
    if not found.others:
        lines.append(f"vitreous evaluate {checkpoint} {data} --compare OTHER --out DIR    # is another checkpoint better")
    lines.append(f"vitreous doctor {data} --against TRAINING_DATA --out DIR    # are test images in the training data")
    return f'<pre class="commands">{chr(10).join(text(line) for line in lines)}</pre>'


# Pieces -----------------------------------------------------------------------------------------------------------------------


def _interval(answers: Predictions, numbers: Mapping[str, Any]) -> tuple[float, float]:
    """By the method that was asked for, if the numbers tell."""
    low, high = numbers.get("interval") or wilson(answers.counts.top1, answers.counts.n)
    return low, high


def _names(answers: Predictions) -> dict[int, str]:
    """As the model calls its classes; as the data does where the model has only numbers."""
    theirs = class_names(answers)
    return {k: theirs[k] if name == str(k) else name for k, name in enumerate(answers.classes)}


def _outcome(answers: Predictions, names: Mapping[int, str]) -> tuple[ValidationResult, tuple[int, ...]]:
    """Over the classes that occur, as a label or as a guess: a model of a thousand classes may be judged by ten."""
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


def _disagreements(mine: Predictions, other: Predictions, most: int | None = DISAGREEMENTS) -> tuple[list[int], list[int]]:
    """Rows that only this one, and that only the other has right; those first of which the wrong one was surest."""
    at = dict(zip(other.numbers.tolist(), range(len(other)), strict=True))
    right, theirs = mine.right(), other.right()
    found: tuple[list[tuple[float, int]], list[tuple[float, int]]] = ([], [])
    for row, number in enumerate(mine.numbers.tolist()):
        there = at.get(number)
        if there is None or not mine.labels[row] or not other.labels[there] or right[row] == theirs[there]:
            continue
        if right[row]:
            found[0].append((-float(other.probabilities[there, 0]), row))
        else:
            found[1].append((-float(mine.probabilities[row, 0]), row))
    first, second = ([row for _, row in sorted(part)[:most]] for part in found)
    return first, second


def _in_turns(cells: Sequence[Sequence[int]]) -> Iterator[int]:
    """The first of each, then the second of each."""
    return (row for turn in itertools.zip_longest(*cells) for row in turn if row is not None)


def _toggle(found: _Found) -> str:
    if not found.pictures.looked:
        return ""
    return '<label class="toggle"><input type="checkbox" class="looked"> show where it looked</label>'


def _anchor(cell: Cell) -> str:
    return f"cell-{cell[0]}-{cell[1]}"


def _images(count: int) -> str:
    return "image" if count == 1 else "images"
