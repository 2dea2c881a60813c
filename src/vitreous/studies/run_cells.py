"""Run the cells of a study that have no row yet; several processes or machines may do so in one folder.

A cell's runs lie in folders named by the hash of everything before them, shared by all studies, so that what two cells or two
studies have in common is trained once. A row is a file, written when its cell is done; a lock keeps other processes from it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import Busy, atomic_file, locked, user_path, write_text
from vitreous.core.output_dir import find_data_folder
from vitreous.core.progress import say, silence
from vitreous.core.untrusted_json import read_json
from vitreous.data.source import Source
from vitreous.studies.budget import describe_seconds
from vitreous.studies.measures import Measured, measure_cell
from vitreous.studies.study import Cell, Stage, hash_json, tuned_families, tuned_rates, with_rates
from vitreous.studies.study_data import open_once
from vitreous.training.batch_fitting import fit_micro_batch
from vitreous.training.build_options import build_options
from vitreous.training.loop import Diverged
from vitreous.training.resolve import resolve
from vitreous.training.trainer import train

Row = dict[str, Any]
_BUSY = "another process is at it"
_WAIT = 1.0  # seconds, while another process has the cells that are left


@dataclass(frozen=True)
class CellRunner:
    """`out` belongs to one study; `runs` is shared by all."""

    out: Path
    runs: Path
    device: str
    precision: str

    def run_missing(self, cells: Sequence[Cell], done: Mapping[str, Row]) -> Iterator[Row]:
        """The rows of cells as they are finished, here or by another process."""
        _check_trials(cells)
        rows = {**done, **self.read_rows(cells)}
        left = [cell for cell in cells if cell.key() not in rows]
        yield from (row for key, row in rows.items() if key not in done)
        began, spent = time.monotonic(), 0
        while left:
            rates = tuned_rates(cells, {key: float(row["accuracy"]) for key, row in rows.items()})
            row = next((row for cell in left if (row := self._try(cell, rates)) is not None), None)
            if row is None:  # all that could be run here is being run elsewhere
                time.sleep(_WAIT)
                row = next(iter(self.read_rows(left).values()), None)
            if row is None:
                continue
            rows[str(row["cell"])] = row
            left = [cell for cell in left if cell.key() != row["cell"]]
            spent += 1
            remaining = describe_seconds((time.monotonic() - began) / spent * len(left))
            seconds = f"{row['seconds']:.0f} s" if row["role"] == "main" else f"trial, {row['seconds']:.0f} s"
            say(
                f"{len(cells) - len(left)} of {len(cells)}: {row['arm']}, seed {row['seed']}: "
                f"{100 * row['accuracy']:.1f} % ({seconds}); about {remaining} left"
            )
            yield row

    def read_rows(self, cells: Sequence[Cell]) -> dict[str, Row]:
        paths = {cell.key(): self.out / "rows" / f"{cell.key()}.json" for cell in cells}
        return {key: _read_row(path) for key, path in paths.items() if path.exists()}

    def _try(self, cell: Cell, rates: Mapping[str, float]) -> Row | None:
        """The row of this cell, unless it waits for a learning rate, or another process has it or its upstream run."""
        if any(family not in rates for family in tuned_families(cell)):
            return None
        path = self.out / "rows" / f"{cell.key()}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with locked(path.with_suffix(".lock"), _BUSY):
                if path.exists():
                    return _read_row(path)
                return self._run(cell, rates, path)
        except Busy:
            return None

    def _run(self, cell: Cell, rates: Mapping[str, float], path: Path) -> Row:
        began, flops, parent, from_ = time.monotonic(), 0.0, "", None
        stages = [with_rates(stage, rates) for stage in cell.stages]
        result: Mapping[str, Any] = {}
        folder = self.runs
        try:
            for number, stage in enumerate(stages):
                name = self._name_run(stages[: number + 1])
                parent, folder = folder.name if number else "", self.runs / name
                with locked(self.runs / f"{name}.lock", _BUSY):
                    result = self._train(stage, folder, from_)
                flops += float(result["flops"])
                from_ = str(folder / "checkpoint")
            with silence():
                measured = measure_cell(cell, folder, result)
        except Diverged:  # no model, and so nothing right; a rate that does this is not chosen
            measured = Measured({"accuracy": 0.0, "diverged": 1})
        seconds = time.monotonic() - began
        key = cell.key()
        if measured.right is not None:
            with atomic_file(path.with_suffix(".npy")) as part, part.open("wb") as file:
                np.save(file, np.packbits(measured.right))
        row = {
            "cell": key, "arm": cell.arm, "seed": cell.seed, "role": cell.role, **cell.factors, **measured.values,
            "flops": flops, "seconds": round(seconds, 1), "run": folder.name, "parent": parent,
            "config": json.dumps([asdict(stage) for stage in stages], sort_keys=True),
        }  # fmt: skip
        write_text(path, json.dumps(row) + "\n")
        _drop_states(folder)
        return row

    def _name_run(self, stages: Sequence[Stage]) -> str:
        """The hash of all that a run depends on; of data that lies in files, its place and its list of images."""
        files = {}
        for data in {str(stage.options["data"]) for stage in stages}:
            place = find_data_folder(data) or user_path(data)
            if place.exists():
                splits = open_once(data).splits.values()
                files[data] = [str(place.resolve()), *(split.fingerprint() for split in splits if isinstance(split, Source))]
        return hash_json([asdict(stage) for stage in stages] + [self.precision] + ([files] if files else []))

    def _train(self, stage: Stage, out: Path, from_: str | None) -> Mapping[str, Any]:
        """The result of a run, which is resumed if it was interrupted and not repeated if it is finished."""
        given = {
            "workers": 0, "eval_every": 0, "device": self.device, "precision": self.precision, **stage.options,
            "set": tuple(f"{name}={value}" for name, value in stage.set.items()), "out": str(out),
        }  # fmt: skip
        if stage.command == "finetune":
            given["from_"] = from_ if from_ is not None else "scratch"
        # Processes share cells, not runs: each is alone, whatever launcher started it.
        with silence():
            return _train_run(stage, given, World(0, 1, torch.device(self.device)))


def _train_run(stage: Stage, given: dict[str, Any], world: World) -> Mapping[str, Any]:
    options, previous = build_options(stage.command, given)
    config = resolve(options, previous, world, dataset=open_once(options.data))
    return train(fit_micro_batch(config, options, previous, world), world).result


def _check_trials(cells: Sequence[Cell]) -> None:
    tried = {cell.factors["family"] for cell in cells if cell.role == "trial"}
    missing = {family for cell in cells for family in tuned_families(cell)} - tried
    if missing:
        raise VitreousError(f"the study has no trials of the learning rate of {', '.join(sorted(missing))}; add a Tuning")


def _read_row(path: Path) -> Row:
    try:
        row: Row = read_json(path)
        row["cell"], row["arm"], row["accuracy"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VitreousError(f"{path}: is no row of a study ({one_line(error)}); delete it to run its cell again") from error
    return row


def _drop_states(run: Path) -> None:
    """Of a finished run only its checkpoint is needed again."""
    for state in (run / "state").glob("step-*"):
        shutil.rmtree(state, ignore_errors=True)
