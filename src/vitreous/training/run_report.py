"""The report of a training run: curves, mistakes, per-class results and settings; it stays small however long the run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from vitreous.core.files import write_text
from vitreous.core.progress import describe_seconds
from vitreous.evaluation.class_tables import class_table, confusion_tables, count_cells
from vitreous.evaluation.headline import accuracy_headline
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.majority import beats_majority
from vitreous.evaluation.validation_result import ValidationResult
from vitreous.reports.charts import Curve, line_chart
from vitreous.reports.image_cards import ImageCard
from vitreous.reports.images import embed_image
from vitreous.reports.render import render
from vitreous.reports.series import number, read_series
from vitreous.training.run_folder import FEWSHOT

LISTED = 100
"""Records in the table of metrics."""
SETTINGS = 400
"""Lines in the table of settings."""
LONGEST = 400
"""Characters of one setting."""
MORE = 6
"""Further metrics that get a chart."""
MISTAKES = 48
"""Images shown, the highest loss first."""

_AXES = {"step", "epoch", "images", "seconds", "flops", "split", "n"}
_DRAWN = {"loss", "lr", "images_per_second"}

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RecordTable:
    """The curves as numbers, for those who cannot see them."""

    split: str
    keys: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_report(
    folder: Path,
    *,
    title: str,
    config: Mapping[str, Any],
    history: Records,
    outcome: ValidationResult | None,
    notes: Sequence[str],
) -> Path:
    """Writes `report.html` in the run folder, whole. `title` says what was trained on what, from what.

    `outcome` is None for masked-patch runs, which know no classes, and for a run that has not been validated yet.
    """
    path = folder / "report.html"
    good, verdict = _verdict(history, outcome)
    # The notes have the decisions.
    settings = list(_flatten({key: value for key, value in config.items() if key != "decisions"}))
    page = render(
        "run.html",
        title=title,
        verdict=verdict,
        verdict_style="good" if good else "bad",
        facts=_facts(history, outcome),
        charts=_charts(history),
        records=_record_table(history),
        split=outcome.split if outcome else "",
        mistakes=_mistake_cards(outcome) if outcome else [],
        confusion=confusion_tables(dict(enumerate(outcome.classes)), count_cells(outcome.confusion)) if outcome else None,
        classes=class_table(outcome.classes, outcome.per_class) if outcome and outcome.per_class else None,
        notes=notes,
        settings=settings[:SETTINGS],
        settings_count=len(settings),
        commands=_commands(folder, config, outcome),
    )
    write_text(path, page)
    return path


def _verdict(history: Records, outcome: ValidationResult | None) -> tuple[bool, str]:
    if outcome is not None:
        good = outcome.majority is None or beats_majority(outcome.top1, outcome.majority)
        interval = wilson(outcome.top1, outcome.n)
        return good, accuracy_headline(outcome.top1, outcome.n, outcome.split, interval, outcome.top5, outcome.majority)
    for split in sorted({*_splits(history)} - {FEWSHOT}, key=lambda split: (split == "train", split)):
        steps, values = read_series(history, "loss", split)
        if len(values):
            if not math.isfinite(values[-1]):
                return False, f"The {split} loss was not a finite number at step {steps[-1]:,.0f}."
            return True, f"{split.capitalize()} loss {values[-1]:.4g} after {steps[-1]:,.0f} steps."
    return False, "Nothing has been measured yet."


def _facts(history: Records, outcome: ValidationResult | None) -> str:
    formats = {"step": "{:,.0f} steps", "epoch": "{:.4g} epochs", "images": "{:,.0f} images seen"}
    most = {}
    for key in (*formats, "flops", "seconds"):
        values = [value for record in history if math.isfinite(value := number(record.get(key)))]
        if values:
            most[key] = max(values)
    parts = [words.format(most[key]) for key, words in formats.items() if key in most]
    if "flops" in most:
        unit, word = _choose_unit(most["flops"], _FLOP_UNITS)
        parts += [f"{most['flops'] / unit:.3g} {word} of training"]
    parts += [describe_seconds(most["seconds"])] if "seconds" in most else []
    if outcome is not None:
        parts += [f"{len(outcome.classes):,} classes", f"{outcome.split} loss {outcome.loss:.4g}"]
        # What accuracy costs (issue 19): runs of different models and lengths compare by it.
        for key, units in (("flops", _FLOP_UNITS), ("seconds", _TIME_UNITS)):
            if most.get(key):
                unit, word = _choose_unit(most[key], units)
                parts += [f"{100 * outcome.top1 * unit / most[key]:.3g} % accuracy per {word}"]
    return ", ".join(parts) + "." if parts else ""


_FLOP_UNITS = ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"))
_TIME_UNITS = ((3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


def _choose_unit(amount: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest that the amount has one of."""
    return next((each for each in units if amount >= each[0]), units[-1])


def _charts(history: Records) -> list[Markup]:
    splits = _splits(history)
    keys = dict.fromkeys(key for record in history for key, value in record.items() if math.isfinite(number(value)))
    tops = [key for key in keys if key.startswith("top")]
    others = [key for key in keys if key not in _AXES | _DRAWN and key not in tops][:MORE]

    def curves(key: str) -> list[Curve]:
        drawn = []
        for colour, split in enumerate(splits):
            steps, values = read_series(history, key, split)
            name = f"{split} {key}" if key in tops and len(tops) > 1 else split
            late = key in tops and tops.index(key) > 0
            drawn.append(Curve(name, steps, values, colour, dashed=late, smoothed=split == "train"))
        return [curve for curve in drawn if np.isfinite(curve.values).any()]

    charts = [
        line_chart("Loss", curves("loss"), logarithmic=True),
        line_chart("Accuracy", [curve for key in tops for curve in curves(key)], percent=True),
        *(line_chart(key, curves(key)) for key in others),
        line_chart("Learning rate", [Curve("Learning rate", *read_series(history, "lr"), colour=2)]),
        line_chart("Images per second", curves("images_per_second")),
    ]
    return [chart for chart in charts if chart is not None]


def _record_table(history: Records) -> RecordTable:
    """What was measured on validation, or else the training records."""
    split = next((split for split in _splits(history) if split != "train"), "train")
    records = [record for record in history if record.get("split") == split]
    chosen = np.unique(np.linspace(0, len(records) - 1, min(LISTED, len(records))).astype(np.int64))
    keys = list(dict.fromkeys(key for record in records for key in record if key not in ("split", "images")))
    return RecordTable(split, keys, [[_format(records[k].get(key), key) for key in keys] for k in chosen.tolist()])


def _format(value: object, key: str) -> str:
    figure = number(value)
    return "–" if not math.isfinite(figure) else f"{figure:,.0f}" if key in ("step", "seconds") else f"{figure:.5g}"


def _mistake_cards(outcome: ValidationResult) -> list[ImageCard]:
    return [
        ImageCard(
            mistake.id,
            embed_image(mistake.pixels),
            truth=" + ".join(mistake.truth),
            predictions=[(name, value, name in mistake.truth) for name, value in mistake.guesses[:5]],
            loss=f"loss {mistake.loss:.3g}" if math.isfinite(mistake.loss) else "loss not finite",
        )
        for mistake in outcome.mistakes[:MISTAKES]
    ]


def _flatten(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """`{"recipe": {"lr": 0.1}}` as `recipe.lr`, `0.1`."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    elif name:
        shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        yield name, shown if len(shown) <= LONGEST else shown[:LONGEST] + " …"


def _commands(folder: Path, config: Mapping[str, Any], outcome: ValidationResult | None) -> list[str]:
    checkpoint = shlex.quote(str(folder / "checkpoint"))
    about = config.get("data")
    name = about.get("name") if isinstance(about, Mapping) else None
    data = shlex.quote(name) if isinstance(name, str) else "DATA"
    if outcome is None:
        return [f"vitreous finetune DATA --from {checkpoint} --out runs/finetuned"]
    return [f"vitreous predict {checkpoint} IMAGE...", f"vitreous evaluate {checkpoint} {data}"]


def _splits(history: Records) -> list[str]:
    found = dict.fromkeys(str(record["split"]) for record in history if "split" in record)
    return sorted(found, key=lambda split: ({"train": 0, "validation": 1, FEWSHOT: 3}.get(split, 2), split))
