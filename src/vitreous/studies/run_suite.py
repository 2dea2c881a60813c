"""`vitreous vtab` as a whole: every task and seed that is missing, one after another; then means, table and figure.

OUT/study.json    whose results these are: model, protocol and tasks
OUT/runs.csv      a row for each task and seed, and for each trial of a sweep
OUT/rows/         the same as files, as they come
OUT/runs/TASK/seed-N  OUT/sweep/lr-R-steps-S/TASK    fine-tuning: runs like any other, which resume
OUT/vtab.json  table.txt  table.md  vtab.png  vtab.svg
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from vitreous.classifier import Classifier, read_checkpoint
from vitreous.core.distributed import World, broadcast_or_raise, init_distributed
from vitreous.core.errors import VitreousError, first_few
from vitreous.core.files import locked, user_path, write_text
from vitreous.core.progress import say
from vitreous.core.untrusted_json import read_json
from vitreous.inference.feature_cache import weights_hash
from vitreous.inspection.figure_style import save
from vitreous.studies.results import RUNS, read_runs, write_runs
from vitreous.studies.rows import Row, RowFiles
from vitreous.studies.study import Cell
from vitreous.studies.suite import Protocol, Suite, Task
from vitreous.studies.suite_cells import SuiteRunner, evaluation_preprocess
from vitreous.studies.suite_data import Parts, final_parts, sweep_parts
from vitreous.studies.suite_options import SuiteOptions, choose_suite
from vitreous.studies.suite_summary import Summary, draw_summary, summarise
from vitreous.studies.suite_table import markdown, plain
from vitreous.training.run_folder import difference
from vitreous.weights.transfer import adapt

STUDY = "study.json"
Setting: TypeAlias = tuple[float, int]  # learning rate, steps

_SWEEP_SEED = 0  # whatever the first seed is: seeds that are added later are to find the same setting


@dataclass(frozen=True)
class SuiteResult:
    """The scores of a model on a suite."""

    out: str
    summary: Summary
    notes: tuple[str, ...] = ()
    exit_code: int = 0

    def text(self) -> str:
        return f"{plain(self.summary)}\n\n{self.out}/vtab.png shows it; {RUNS}, vtab.json and table.md have the numbers"

    def records(self) -> list[dict[str, Any]]:
        return self.summary.records()


def run_suite(options: SuiteOptions) -> SuiteResult:
    """Run what is missing of a suite, then write table and figure."""
    suite = choose_suite(options)
    with init_distributed(options.device) as world:
        return _run_tasks(options, suite, world)


def _run_tasks(options: SuiteOptions, suite: Suite, world: World) -> SuiteResult:
    out, protocol = user_path(options.out), suite.protocol
    checkpoint = read_checkpoint(options.checkpoint)
    final = _open_all(suite, final_parts, options.data_seed)
    for_sweep = _open_all(suite, sweep_parts, options.data_seed) if options.sweep else {}
    adapt(checkpoint, image_size=protocol.image_size)  # a size that patches do not divide is said before anything is made
    prepared = evaluation_preprocess(options.mode, protocol.image_size, checkpoint)
    notes = [f"preprocessing {prepared}", *(note for parts in final.values() for note in parts.notes)]
    weights = {"model": checkpoint.config.name, "sha256": weights_hash(Classifier(checkpoint, copy=False))}
    identity = _identify(options, suite, weights, prepared, final)
    broadcast_or_raise(world, lambda: claim_folder(out, identity))
    runner = SuiteRunner(options, suite, checkpoint, world)
    table = _RunsTable(out, RowFiles(out, world), runner)
    if options.sweep:
        protocol, sentence = _choose_setting(suite, table, for_sweep)
        notes.append(sentence)
    seeds = range(options.seed, options.seed + (1 if options.mode == "linear" else protocol.seeds))
    rows = table.run([runner.cell(task, protocol, seed) for task in suite.tasks for seed in seeds], final)
    summary = summarise(
        replace(suite, protocol=protocol), rows, seeds,
        mode=options.mode, checkpoint=options.checkpoint, changes=options.changes, preprocess=prepared,
    )  # fmt: skip
    if world.is_main and not _write_summary(out, summary):
        notes.append(f"{out}: this study is finished; nothing was changed")
    return SuiteResult(options.out, summary, tuple(dict.fromkeys(notes)))


def _open_all(suite: Suite, open_parts: Callable[[Task, Protocol, int], Parts], data_seed: int) -> dict[str, Parts]:
    """Every task's data, before anything is begun: what is missing is said at once, and all of it."""
    found: dict[str, Parts] = {}
    failed: dict[str, VitreousError] = {}
    for task in suite.tasks:
        try:
            found[task.name] = open_parts(task, suite.protocol, data_seed)
        except VitreousError as error:
            failed[task.name] = error
    if not failed:
        return found
    first = next(iter(failed.values()))
    if len(suite.tasks) == 1:
        raise first
    here = f"; --tasks {','.join(found)} measures those that are here" if found else ""
    raise VitreousError(
        f"{len(failed)} of {len(suite.tasks)} tasks cannot be opened: {first_few([*failed], 19)} (the first: {first}){here}"
    )


# Whose results these are -----------------------------------------------------------------------------------------------


def _identify(
    options: SuiteOptions, suite: Suite, weights: Mapping[str, str], prepared: str, opened: Mapping[str, Parts]
) -> dict[str, Any]:
    """What makes results comparable. How many seeds, and which tasks, may differ from start to start."""
    linear, protocol = options.mode == "linear", suite.protocol.record()
    compared = ("image_size", "examples") if linear else [name for name in protocol if name != "seeds"]
    return {
        "suite": suite.name,
        "mode": options.mode,
        "checkpoint": weights,
        "protocol": {name: protocol[name] for name in compared},
        **({"preprocess": prepared} if linear else {}),
        "set": [f"{name}={value}" for name, value in options.changes.items()],
        "sweep": options.sweep,
        "precision": options.precision,
        **({"engine": options.engine} if options.engine not in ("torch", "eager") else {}),
        "tasks": {
            task.name: {
                "group": task.group, "crop": task.crop, "flip": task.flip, "images": opened[task.name].fingerprint()
            }
            for task in suite.tasks
        },
        "arguments": {"checkpoint": options.checkpoint, "data": {task.name: task.data for task in suite.tasks}},
    }  # fmt: skip


def claim_folder(out: Path, identity: Mapping[str, Any]) -> None:
    """A folder belongs to one model and one protocol; another is refused, with the difference. Tasks may be added."""
    if out.exists() and not out.is_dir():
        raise VitreousError(f"--out {out}: is a file; a folder is needed")
    path = out / STUDY
    if not path.exists() and out.exists() and any(not entry.name.endswith((".part", ".lock")) for entry in out.iterdir()):
        raise VitreousError(f"--out {out}: is not empty and no study of this program; choose another folder")
    with locked(out / "study.lock"):
        try:
            old = read_json(path) if path.exists() else {"tasks": {}}
            before = {**old, "tasks": {name: old["tasks"][name] for name in identity["tasks"] if name in old["tasks"]}}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VitreousError(f"{path}: cannot be read ({error}); restore it, or choose another --out") from error
        now = {**identity, "tasks": {name: identity["tasks"][name] for name in before["tasks"]}}
        if path.exists() and (found := difference(before, now)):
            raise VitreousError(
                f"--out {out}: holds results of another model or protocol ({first_few([str(each) for each in found], 6)}); "
                f"give the same again, or choose another --out"
            )
        merged = {**identity, "tasks": {**old["tasks"], **identity["tasks"]}}
        if merged != old:
            write_text(path, json.dumps(merged, indent=1, ensure_ascii=False) + "\n")


# The work --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RunsTable:
    """runs.csv, and the cells that it lacks."""

    out: Path
    files: RowFiles
    runner: SuiteRunner

    def run(self, cells: Sequence[Cell], opened: Mapping[str, Parts]) -> list[Row]:
        """The rows of these cells; those that are missing are run."""
        rows: dict[str, Row] = broadcast_or_raise(self.files.world, lambda: read_runs(self.out / RUNS))
        by_key = {cell.key(): cell for cell in cells}
        for row in self.files.run_missing(cells, rows, lambda cell, _: self.runner.run(cell, opened[cell.arm])):
            rows[str(row["cell"])] = row
            if self.files.world.is_main:
                # Another process may have added rows of its own.
                write_runs(self.out / RUNS, [*{**read_runs(self.out / RUNS), **rows}.values()])
            self.runner.drop_weights(by_key[str(row["cell"])])
        for cell in cells:
            self.runner.drop_weights(cell)
        return [rows[key] for key in by_key]


def _choose_setting(suite: Suite, table: _RunsTable, opened: Mapping[str, Parts]) -> tuple[Protocol, str]:
    """The paper's way: every setting on every task, evaluated on validation images; one setting for all, by the mean."""
    protocol, names = suite.protocol, [task.name for task in suite.tasks]
    settings = [protocol.at(lr=rate, steps=steps) for steps in protocol.lengths() for rate in protocol.rates()]
    rows = table.run(
        [table.runner.cell(task, setting, _SWEEP_SEED, "trial") for setting in settings for task in suite.tasks], opened
    )
    rate, steps = best_setting(rows, names)
    means = [f"lr {own.lr:g} x {own.steps:,} steps {mean_of(rows, names, own.lr, own.steps):.2%}" for own in settings]
    sentence = f"lr {rate:g}, {steps:,} steps: the best mean on the validation images of {len(names)} tasks"
    if table.files.world.is_main:
        say(sentence)
    return protocol.at(lr=rate, steps=steps), f"{sentence} ({', '.join(means)})"


def mean_of(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], rate: float, steps: int) -> float:
    """Of one setting over all these tasks; NaN where one has not been tried."""
    own = {row["arm"]: row["accuracy"] for row in rows if (row["lr"], row["steps"]) == (rate, steps)}
    return sum(own[task] for task in tasks) / len(tasks) if all(task in own for task in tasks) else math.nan


def best_setting(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Setting:
    """The setting with the best mean over all tasks; of equals the shorter one, then the smaller rate."""
    tried = sorted({(row["lr"], row["steps"]) for row in rows}, key=lambda setting: (setting[1], setting[0]))
    means = {setting: mean_of(rows, tasks, *setting) for setting in tried}
    return max((setting for setting in tried if not math.isnan(means[setting])), key=lambda setting: means[setting])


def _write_summary(out: Path, summary: Summary) -> bool:
    """Whether there was anything to write."""
    text = json.dumps(summary.record(), indent=1, ensure_ascii=False) + "\n"
    path = out / "vtab.json"
    files = [out / name for name in ("table.txt", "table.md", "vtab.png", "vtab.svg")]
    if path.exists() and path.read_text(encoding="utf-8") == text and all(file.exists() for file in files):
        return False
    write_text(out / "table.txt", plain(summary) + "\n")
    write_text(out / "table.md", markdown(summary))
    save(draw_summary(summary), out, "vtab")
    write_text(path, text)
    return True
