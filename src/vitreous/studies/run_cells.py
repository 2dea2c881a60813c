"""Run the cells of a study that have no row yet: each a chain of runs, and what is measured at its end.

A cell's runs lie in folders named by the hash of everything before them, shared by all studies, so that what two cells or two
studies have in common is trained once.
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

from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_file, user_path
from vitreous.core.output_dir import find_data_folder
from vitreous.core.progress import silence
from vitreous.data.source import Dataset, Source
from vitreous.studies.measures import Measured, measure_cell
from vitreous.studies.rows import Row, RowFiles, locked_together
from vitreous.studies.study import Cell, Stage, hash_json, tuned_families, tuned_rates, with_rates
from vitreous.studies.study_data import open_once
from vitreous.training.batch_fitting import fit_micro_batch
from vitreous.training.build_options import build_options
from vitreous.training.loop import Diverged
from vitreous.training.resolve import resolve
from vitreous.training.trainer import train


@dataclass(frozen=True)
class CellRunner:
    """`rows` belongs to one study; the folder `runs` is shared by all."""

    rows: RowFiles
    runs: Path
    device: str
    precision: str

    def run_missing(self, cells: Sequence[Cell], done: Mapping[str, Row]) -> Iterator[Row]:
        """The rows of cells as they are finished, here or by another process."""
        _check_trials(cells)
        for row in self.rows.run_missing(cells, done, lambda cell, rows: self._run(cell, cells, rows)):
            drop_states(self.runs / str(row["run"]))
            yield row

    def _run(self, cell: Cell, cells: Sequence[Cell], rows: Mapping[str, Row]) -> Row | None:
        """None while the trials of its learning rate are not done."""
        rates = tuned_rates(cells, {key: float(row["accuracy"]) for key, row in rows.items()}) if tuned_families(cell) else {}
        if any(family not in rates for family in tuned_families(cell)):
            return None
        began, flops, parent, from_ = time.monotonic(), 0.0, "", None
        stages = [with_rates(stage, rates) for stage in cell.stages]
        result: Mapping[str, Any] = {}
        folder = self.runs
        try:
            for number, stage in enumerate(stages):
                name = self._name_run(stages[: number + 1])
                parent, folder = folder.name if number else "", self.runs / name
                given = {"workers": 0, "eval_every": 0, "device": self.device, "precision": self.precision, "out": str(folder)}
                if stage.command == "finetune":
                    given["from_"] = from_ if from_ is not None else "scratch"
                with locked_together(self.rows.world, self.runs / f"{name}.lock"), silence():
                    result = train_stage(stage, given, open_once(str(stage.options["data"])), self.rows.world)
                flops += float(result["flops"])
                from_ = str(folder / "checkpoint")
            with silence():
                measured = measure_cell(cell, folder, result)
        except Diverged:  # no model, and so nothing right; a rate that does this is not chosen
            measured = Measured({"accuracy": 0.0, "diverged": 1})
        if measured.right is not None:
            with atomic_file(self.rows.path(cell).with_suffix(".npy")) as part, part.open("wb") as file:
                np.save(file, np.packbits(measured.right))
        return {
            "cell": cell.key(), "arm": cell.arm, "seed": cell.seed, "role": cell.role, **cell.factors, **measured.values,
            "flops": flops, "seconds": round(time.monotonic() - began, 1), "run": folder.name, "parent": parent,
            "config": describe_stages(stages),
        }  # fmt: skip

    def _name_run(self, stages: Sequence[Stage]) -> str:
        """The hash of all that a run depends on; of data that lies in files, its place and its list of images."""
        files = {}
        for data in {str(stage.options["data"]) for stage in stages}:
            place = find_data_folder(data) or user_path(data)
            if place.exists():
                splits = open_once(data).splits.values()
                files[data] = [str(place.resolve()), *(split.fingerprint() for split in splits if isinstance(split, Source))]
        return hash_json([asdict(stage) for stage in stages] + [self.precision] + ([files] if files else []))


def train_stage(stage: Stage, given: Mapping[str, Any], dataset: Dataset, world: World) -> Mapping[str, Any]:
    """The result of a run, which is resumed if it was interrupted and not repeated if it is finished."""
    changes = tuple(f"{name}={value}" for name, value in stage.set.items())
    options, previous = build_options(stage.command, {**given, **stage.options, "set": changes})
    config = resolve(options, previous, world, dataset)
    return train(fit_micro_batch(config, options, previous, world), world).result


def _check_trials(cells: Sequence[Cell]) -> None:
    tried = {cell.factors["family"] for cell in cells if cell.role == "trial"}
    missing = {family for cell in cells for family in tuned_families(cell)} - tried
    if missing:
        raise VitreousError(f"the study has no trials of the learning rate of {', '.join(sorted(missing))}; add a Tuning")


def describe_stages(stages: Sequence[Stage]) -> str:
    """For the column `config` of runs.csv."""
    return json.dumps([asdict(stage) for stage in stages], sort_keys=True)


def drop_states(run: Path) -> None:
    """Of a finished run only its checkpoint is needed again."""
    for state in (run / "state").glob("step-*"):
        shutil.rmtree(state, ignore_errors=True)
