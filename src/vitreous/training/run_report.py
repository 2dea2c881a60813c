"""A run's page: it stays small however long the run, and reads without its script."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.core.files import write_text
from vitreous.evaluation.class_tables import class_table, confusion_section, mistakes_section
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.majority import beats_majority
from vitreous.evaluation.validation_result import ValidationResult
from vitreous.reports.curves import Curve, chart, number, read_series
from vitreous.reports.html import asset, page, scrolled, text

LISTED = 100  # records in the table of numbers
SETTINGS = 400  # lines in the table of settings
LONGEST = 400  # letters of one setting
MORE = 6  # further quantities that get a chart

_AXES = {"step", "epoch", "images", "seconds", "split", "n"}
_DRAWN = {"loss", "lr", "images_per_second"}


def write_report(
    folder: Path,
    *,
    title: str,
    config: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    outcome: ValidationResult | None,
    notes: Sequence[str],
) -> Path:
    """Writes `report.html` in the run folder, whole. `title` says what was trained on what, from what.

    `outcome` is None for masked-patch runs, which know no classes, and for a run that has not been judged yet.
    """
    path = folder / "report.html"
    body = "\n".join(_body(folder, title, config, history, outcome, notes))
    write_text(path, page(title, body, styles=(asset("assets/results.css"),), script=asset("assets/results.js")))
    return path


# Sections ---------------------------------------------------------------------------------------------------------------------


def _body(
    folder: Path,
    title: str,
    config: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    outcome: ValidationResult | None,
    notes: Sequence[str],
) -> Iterator[str]:
    good, said = _verdict(history, outcome)
    yield f'<header><h1>{text(title)}</h1><p class="verdict {"good" if good else "bad"}">{text(said)}</p>'
    yield f'<p class="quiet">{text(_facts(history, outcome))}</p></header><main>'
    if charts := _charts(history):
        yield f'<h2>Curves</h2><div class="charts">{charts}</div>{_numbers(history)}'
    if outcome is not None:
        if outcome.mistakes:
            told = f"Of the {outcome.split} images, those with the highest loss. The bars are the model’s guesses."
            yield f'<h2>The worst mistakes</h2><p class="quiet">{text(told)}</p>{mistakes_section(outcome)}'
        if confusion := confusion_section(outcome):
            yield f"<h2>Confusion</h2>{confusion}"
        if classes := class_table(outcome):
            yield f"<h2>Class by class</h2>{classes}"
    yield "<h2>Settings</h2>"
    if notes:
        yield f'<ul class="notes">{"".join(f"<li>{text(note)}</li>" for note in notes)}</ul>'
    yield _settings({key: value for key, value in config.items() if key != "decisions"})  # the notes have them
    yield f'<h2>How to go on</h2><pre class="commands">{text_lines(_commands(folder, config, outcome))}</pre>'
    told = "Every number of the curves is in metrics.jsonl beside this page, every setting in config.json."
    yield f"</main><footer>Made by vitreous {text(version('vitreous'))}. {told}</footer>"


def _verdict(history: Sequence[Mapping[str, Any]], outcome: ValidationResult | None) -> tuple[bool, str]:
    if outcome is not None:
        low, high = wilson(outcome.top1, outcome.n)
        top5 = f"; {100 * outcome.top5:.2f} % within five guesses" if outcome.top5 is not None else ""
        rate = outcome.majority
        alone = "" if rate is None else f"; always predicting the largest class: {100 * rate:.2f} %"
        return rate is None or beats_majority(outcome.top1, rate), (
            f"{100 * outcome.top1:.2f} % of {outcome.n:,} {outcome.split} images right "
            f"(95 % interval {100 * low:.2f} to {100 * high:.2f}){top5}{alone}."
        )
    for split in sorted({str(record.get("split")) for record in history}, key=lambda split: (split == "train", split)):
        steps, values = read_series(history, "loss", split)
        if len(values):
            if not math.isfinite(values[-1]):
                return False, f"The {split} loss was not a finite number at step {steps[-1]:,.0f}."
            return True, f"{split.capitalize()} loss {values[-1]:.4g} after {steps[-1]:,.0f} steps."
    return False, "Nothing has been measured yet."


def _facts(history: Sequence[Mapping[str, Any]], outcome: ValidationResult | None) -> str:
    parts = []
    for key, form in (("step", "{:,.0f} steps"), ("epoch", "{:.4g} epochs"), ("images", "{:,.0f} images seen")):
        values = [value for record in history if math.isfinite(value := number(record.get(key)))]
        if values:
            parts.append(form.format(max(values)))
    seconds = [value for record in history if math.isfinite(value := number(record.get("seconds")))]
    if seconds:
        parts.append(_duration(max(seconds)))
    if outcome is not None:
        parts.append(f"{len(outcome.classes):,} classes")
        parts.append(f"{outcome.split} loss {outcome.loss:.4g}")
    return ", ".join(parts) + "." if parts else ""


def _charts(history: Sequence[Mapping[str, Any]]) -> str:
    splits = _splits(history)
    keys = dict.fromkeys(key for record in history for key, value in record.items() if math.isfinite(number(value)))
    tops = [key for key in keys if key.startswith("top")]
    others = [key for key in keys if key not in _AXES | _DRAWN and key not in tops][:MORE]

    def of(key: str) -> list[Curve]:
        drawn = []
        for colour, split in enumerate(splits):
            steps, values = read_series(history, key, split)
            name = f"{split} {key}" if key in tops and len(tops) > 1 else split
            late = key in tops and tops.index(key) > 0
            drawn.append(Curve(name, steps, values, colour, dashed=late, smoothed=split == "train"))
        return [curve for curve in drawn if len(curve.steps)]

    return "".join(
        [
            chart("Loss", of("loss"), logarithmic=True),
            chart("Accuracy", [curve for key in tops for curve in of(key)], percent=True),
            *(chart(key, of(key)) for key in others),
            chart("Learning rate", [Curve("Learning rate", *read_series(history, "lr"), colour=2)]),
            chart("Images per second", of("images_per_second")),
        ]
    )


def _numbers(history: Sequence[Mapping[str, Any]]) -> str:
    """The curves as numbers, for those who cannot see them: what was measured on validation, or else the training records."""
    split = next((split for split in _splits(history) if split != "train"), "train")
    records = [record for record in history if record.get("split") == split]
    chosen = np.unique(np.linspace(0, len(records) - 1, min(LISTED, len(records))).astype(np.int64))
    keys = list(dict.fromkeys(key for record in records for key in record if key not in ("split", "images")))
    head = "".join(f'<th scope="col" class="number">{text(key)}</th>' for key in keys)
    rows = "".join(f"<tr>{''.join(_figure(records[k].get(key), key) for key in keys)}</tr>" for k in chosen.tolist())
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<details><summary>The {text(split)} records as numbers</summary>{scrolled('records', table)}</details>"


def _figure(value: object, key: str) -> str:
    figure = number(value)
    shown = "–" if not math.isfinite(figure) else f"{figure:,.0f}" if key in ("step", "seconds") else f"{figure:.5g}"
    return f'<td class="number">{shown}</td>'


def _settings(config: Mapping[str, Any]) -> str:
    lines = list(_flat(config))
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in lines[:SETTINGS])
    more = f'<p class="quiet">{len(lines) - SETTINGS:,} more in config.json.</p>' if len(lines) > SETTINGS else ""
    table = scrolled("settings", f'<table class="settings"><tbody>{rows}</tbody></table>')
    return f"<details><summary>All {len(lines):,} settings</summary>{table}{more}</details>" if lines else ""


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        many = isinstance(value, (list, tuple))
        said = ", ".join(str(part) for part in value) if many else str(value)  # type: ignore[attr-defined]
        yield name, said if len(said) <= LONGEST else said[:LONGEST] + " …"


def _commands(folder: Path, config: Mapping[str, Any], outcome: ValidationResult | None) -> list[str]:
    checkpoint = shlex.quote(str(folder / "checkpoint"))
    about = config.get("data")
    name = about.get("name") if isinstance(about, Mapping) else None
    data = shlex.quote(name) if isinstance(name, str) else "DATA"
    if outcome is None:
        return [f"vitreous finetune DATA --from {checkpoint} --out runs/finetuned"]
    return [f"vitreous predict {checkpoint} IMAGE...", f"vitreous evaluate {checkpoint} {data}"]


def text_lines(lines: Sequence[str]) -> str:
    return "\n".join(text(line) for line in lines)


def _splits(history: Sequence[Mapping[str, Any]]) -> list[str]:
    found = dict.fromkeys(str(record["split"]) for record in history if "split" in record)
    return sorted(found, key=lambda split: ({"train": 0, "validation": 1}.get(split, 2), split))


def _duration(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:,} h {minute} min" if hours else f"{minute} min {second} s" if minute else f"{second} s"
