"""`vitreous study` as a whole: a grid that fits the budget, written once; its missing cells run; table, figure and verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError, one_line
from vitreous.core.fields import check_fields, from_json
from vitreous.core.files import cache_dir, locked, user_path, write_text
from vitreous.core.output_dir import check_outside, check_writable, find_data_folder
from vitreous.core.progress import describe_seconds, say
from vitreous.core.table import table
from vitreous.core.untrusted_json import read_json
from vitreous.data.source import Source
from vitreous.inspection.figure_style import save
from vitreous.studies import results
from vitreous.studies.budget import (
    DEFAULT_LEVEL,
    LEVELS,
    choose_scale,
    parse_budget,
    predict_seconds,
    scale_at,
)
from vitreous.studies.check_cells import check_cells, check_data
from vitreous.studies.paper_figures import PAPER
from vitreous.studies.registry import STUDIES, find_study
from vitreous.studies.rows import Row, RowFiles, in_order
from vitreous.studies.run_cells import CellRunner
from vitreous.studies.study import Axes, Cell, Scale, Study, hash_json
from vitreous.studies.study_data import open_once
from vitreous.studies.study_figure import FEWEST, draw_study, mean_points

GRID, MADE_BY = "grid.json", "vitreous study"
_BEFORE = ("grid.lock", f"{PAPER}.png", f"{PAPER}.svg")  # may lie in the folder of a new study


@dataclass(frozen=True)
class StudyResult:
    """The verdicts of a study, and how far its runs are."""

    study: Study
    out: str
    verdicts: tuple[dict[str, Any], ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    exit_code: int = 0

    def text(self) -> str:
        arms = dict.fromkeys(row["arm"] for row in self.rows if row["role"] == "main")
        points = {str(point.x): point for point in mean_points(replace(self.study.axes, x=None), self.rows)}
        lines = [
            (arm, f"{points[arm].y:.1f}", _interval(points[arm].low, points[arm].high), self._seeds(arm))
            for arm in arms
            if arm in points
        ]
        # Where the figure shows points of its own, the table has accuracies all the same.
        label = Axes().y_label if self.study.points else self.study.axes.y_label
        claims = []
        for record in self.verdicts:
            interval = _interval(*(record["interval"] or (None, None)))
            claims.append((record["claim"], _number(record["effect"]), interval, record["seeds"], record["verdict"]))
        return (
            table(("arm", label, "95 % interval", "seeds"), lines)
            + "\n\n"
            + table(("claim", "effect (points)", "95 % interval", "seeds", "verdict"), claims)
            + f"\n\n{self.out}/figure.png shows it; runs.csv and result.json have the numbers"
        )

    def _seeds(self, arm: str) -> int:
        return sum(row["arm"] == arm and row["role"] == "main" for row in self.rows)

    def records(self) -> list[dict[str, Any]]:
        return [*self.verdicts]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.2f} to {high:.2f}"


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    name: str
    data: str = ""  # "": the study's own
    upstream: str = ""
    out: str
    budget: str | None = None
    level: int | None = None
    seeds: int | None = None
    primary: bool = False  # only what the primary claim needs
    runs: str | None = None
    device: str = "cpu"
    precision: str = "float32"


def run_study(options: StudyOptions) -> StudyResult:
    """Run what is missing of a study, then write runs.csv, figure and result.json."""
    study, sha256 = find_study(options.name)
    seconds = parse_budget(options.budget) if options.budget is not None else None
    if options.seeds is not None and options.seeds < 2:
        raise VitreousError(f"--seeds {options.seeds}: a comparison needs at least two")
    if options.level is not None and not 0 <= options.level < len(LEVELS):
        raise VitreousError(f"--level {options.level}: must be from 0 to {len(LEVELS) - 1}")
    if options.level is not None and seconds is not None:
        raise VitreousError("--level and --budget: both choose the size; leave one out")
    if options.upstream and not study.upstream:
        raise VitreousError(f"--upstream {options.upstream}: {study.name} trains from scratch; leave it out")
    options = replace(options, data=options.data or study.data)
    data, folder = options.data, user_path(options.out)
    check_outside(folder, find_data_folder(data))
    check_writable("--out", folder)
    check_data(data)
    if options.upstream:
        check_data(options.upstream)
    with locked(folder / "grid.lock"):
        scale, cells = _read_grid(folder, study, sha256, options) or _make_grid(folder, study, sha256, options, seconds)
    check_cells(cells)
    runs = user_path(options.runs) if options.runs else cache_dir() / "runs"
    # Processes share cells, not runs: each is alone, whatever launcher started it.
    files = RowFiles(folder, World(0, 1, torch.device(options.device)))
    runner = CellRunner(files, runs, options.device, options.precision)
    rows = {key: row for key, row in results.read_runs(folder / results.RUNS).items() if key in {cell.key() for cell in cells}}
    due = study.primary_cells(cells) if options.primary else cells
    done = sum(cell.key() in rows for cell in due)
    which = f"{len(due)} of them for the primary claim" if options.primary else f"{len(due)} runs"
    say(f"{study.name}: {which}, {done} done; {_describe(scale)}")
    try:
        for row in runner.run_missing(due, dict(rows)):
            rows[str(row["cell"])] = row
            results.write_runs(folder / results.RUNS, in_order(cells, rows))
    finally:
        rows |= files.read(cells)  # those of other processes, too
        verdicts = write_results(study, sha256, folder, cells, rows)
    return StudyResult(study, options.out, tuple(verdicts), tuple(in_order(cells, rows)))


def _make_grid(
    folder: Path, study: Study, sha256: str, options: StudyOptions, budget: float | None
) -> tuple[Scale, tuple[Cell, ...]]:
    data, upstream, seeds = options.data, options.upstream, options.seeds
    if options.level is not None or budget is None:
        scale = scale_at(study, DEFAULT_LEVEL if options.level is None else options.level, data, upstream, seeds)
        seconds = predict_seconds(study.cells(scale), options.device, {})
    else:
        scale, seconds = choose_scale(study, data, upstream, budget, seeds, options.device)
    cells = study.cells(scale)
    check_cells(cells)  # before a folder is made for them
    say(f"{study.name}: {len(cells)} runs, about {describe_seconds(seconds)} here; the grid is kept in {folder / GRID}")
    record = {"made_by": MADE_BY, "version": 1, "study": study.name, "study_sha256": sha256, "scale": asdict(scale)}
    record |= {"precision": options.precision, "data_fingerprint": _fingerprint(data)}
    grid = [{"cell": cell.key(), "arm": cell.arm, "seed": cell.seed, "role": cell.role} for cell in cells]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / GRID, json.dumps({**record, "predicted_seconds": round(seconds), "cells": grid}, indent=1) + "\n")
    return scale, cells


def _read_grid(folder: Path, study: Study, sha256: str, options: StudyOptions) -> tuple[Scale, tuple[Cell, ...]] | None:
    """The grid that this folder was begun with; refused where it is of another study, data, size or registration."""
    path = folder / GRID
    if not path.exists():
        if folder.exists() and any(entry.name not in _BEFORE for entry in folder.iterdir()):
            raise VitreousError(f"--out {folder}: holds other files; choose a new folder")
        return None
    try:
        found: Mapping[str, Any] = read_json(path)
        scale, keys = from_json(Scale, found["scale"], "field of a grid's scale"), [cell["cell"] for cell in found["cells"]]
        check_fields(scale, lambda name, value: f"{name} {value}:")
        name, before = found["study"], found["study_sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, VitreousError) as error:
        raise VitreousError(f"{path}: is no grid of a study ({one_line(error)}); choose another --out") from error
    fingerprint = _fingerprint(options.data)
    of = {
        "study": (name, study.name),
        "data": (scale.data, options.data),
        "upstream": (scale.upstream, options.upstream or scale.upstream),
        "seeds": (scale.seeds, options.seeds or scale.seeds),
        "level": (scale.level, scale.level if options.level is None else options.level),
        "precision": (found.get("precision", "float32"), options.precision),
        "images": (found.get("data_fingerprint", fingerprint), fingerprint),
    }
    for what, (then, now) in of.items():
        if then != now:
            raise VitreousError(f"--out {folder}: its grid is of {what} {then}, not {now}; choose another folder")
    changed = VitreousError(f"--out {folder}: study {study.name} has changed since its grid was made; choose a new folder")
    try:
        cells = study.cells(scale)
    except (ValueError, ArithmeticError) as error:  # of a scale that no level has
        raise changed from error
    if before != sha256 or keys != [cell.key() for cell in cells]:
        raise changed
    return scale, cells


def _fingerprint(data: str) -> str:
    """Changes with the list of images and labels."""
    return hash_json({name: split.fingerprint() for name, split in open_once(data).splits.items() if isinstance(split, Source)})


def _describe(scale: Scale) -> str:
    from_ = f", upstream {scale.upstream}" if scale.upstream else ""
    return f"{scale.data} at {scale.image_size} pixels{from_}; about {scale.images:,} images a run"


def write_results(
    study: Study, sha256: str, folder: Path, cells: Sequence[Cell], rows: Mapping[str, Row]
) -> list[dict[str, Any]]:
    """runs.csv, outcomes, verdicts and figure of what was run so far."""
    ordered = in_order(cells, rows)
    results.write_runs(folder / results.RUNS, ordered)
    outcomes = results.read_outcomes(folder, cells, set(study.claims[0].weights))
    results.write_outcomes(folder, outcomes)
    known = {name: results.read_primary_p(folder.parent, name) for name in STUDIES if name != study.name}
    others = {name: p for name, p in known.items() if p is not None}
    verdicts = results.decide_claims(study, sha256, ordered, outcomes, others)
    results.write_result(folder / results.RESULT, verdicts)
    if any(row["role"] == "main" for row in ordered):
        first = verdicts[0]
        verdict = f"{first['verdict'].capitalize()} ({first['seeds']} seeds)"
        subtitle = f"{first['claim']} {verdict}; bars: 95 % intervals, where there are {FEWEST} seeds or more"
        points = study.points(ordered) if study.points else mean_points(study.axes, ordered)
        if study.axes.x is not None and len({point.x for point in points}) < 2:  # no line yet: a point for each arm
            study = replace(study, axes=replace(study.axes, x=None))
            points = mean_points(study.axes, ordered)
        save(draw_study(study, points, subtitle), folder, "figure")
    return verdicts
