"""A whole suite: every task and seed that is missing, one after another; then the means, the table and the chart.

OUT/study.json      whose results these are: model, protocol and tasks
OUT/results.jsonl   a line for each task and seed, as they come
OUT/runs/TASK/seed-N    fine-tuning: a run like any other, which resumes
OUT/sweep.jsonl  OUT/sweep/lr-R-steps-S/TASK    with a sweep
OUT/vtab.json  table.txt  table.md  vtab.png  vtab.svg
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from vitreous.classifier import Classifier, read_checkpoint
from vitreous.core.device import PrecisionName as Precision
from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError, first_few
from vitreous.core.files import write_text
from vitreous.core.progress import say
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference.feature_cache import weights_hash
from vitreous.inference.precision import agreed_precision
from vitreous.studies.suite import Protocol, Suite, Task
from vitreous.studies.suite_chart import write_chart
from vitreous.studies.suite_data import Parts, final_parts, sweep_parts
from vitreous.studies.suite_results import RESULTS, SWEEP, Results, claim
from vitreous.studies.suite_summary import Summary, summarise
from vitreous.studies.suite_table import markdown, plain
from vitreous.studies.suite_task import Machine, Score, drop_weights, evaluation_preprocess, fewshot_task, finetune_task
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.transfer import adapt

Mode: TypeAlias = Literal["finetune", "linear"]
Setting: TypeAlias = tuple[float, int]  # learning rate, steps

_SWEEP_SEED = 0  # whatever the first seed is: seeds that are added later are to find the same setting


@dataclass(frozen=True)
class Study:
    """What is asked for."""

    suite: Suite
    checkpoint: str
    out: Path
    mode: Mode = "finetune"
    seed: int = 0  # the first
    data_seed: int = 0  # of splits and examples
    seeds: int = 3
    sweep: bool = False
    changes: tuple[str, ...] = ()  # to the recipe, for all tasks
    batch_size: int | None = None  # of closed form: images at once
    keep_weights: bool = False
    machine: Machine = field(default_factory=Machine)

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True)
class SuiteResult:
    summary: Summary
    table: str
    notes: tuple[str, ...]


def measure(study: Study, world: World) -> SuiteResult:
    """Do what is missing, and sum up."""
    suite, protocol = study.suite, study.suite.protocol
    checkpoint = read_checkpoint(study.checkpoint)
    opened = _opened(suite, protocol, study.data_seed, sweep=False)
    for_sweep = _opened(suite, protocol, study.data_seed, sweep=True) if study.sweep else {}
    adapt(checkpoint, image_size=protocol.image_size)  # a size that patches do not divide is said before anything is made
    folder = claim(study.out, _identity(study, checkpoint, opened), world)
    try:
        results, scorer = Results(study.out / RESULTS, world), _Scorer(study, checkpoint, world)
        prepared = evaluation_string(study, checkpoint)
        notes = [f"preprocessing {prepared}", *(note for parts in opened.values() for note in parts.notes)]
        if study.sweep:
            protocol, sentence = _swept(study, for_sweep, scorer)
            notes.append(sentence)
        done = _missing(study, protocol, opened, results, scorer)
        summary = replace(_summary(study, protocol, results), preprocess=prepared)
        if world.is_main and not _written(study.out, summary, done):
            notes.append(f"{study.out}: this study is finished; nothing was changed")
    finally:
        folder.release()
    return SuiteResult(summary, plain(summary), tuple(dict.fromkeys(notes)))


def _opened(suite: Suite, protocol: Protocol, data_seed: int, sweep: bool) -> dict[str, Parts]:
    """Every task's data, before anything is begun: what is missing is said at once, and all of it."""
    found: dict[str, Parts] = {}
    failed: dict[str, VitreousError] = {}
    for task in suite.tasks:
        try:
            found[task.name] = (sweep_parts if sweep else final_parts)(task, protocol, data_seed)
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


def _identity(study: Study, checkpoint: Checkpoint, opened: Mapping[str, Parts]) -> dict[str, Any]:
    """What makes results comparable. How many seeds, and which tasks, may differ from start to start."""
    protocol = study.suite.protocol.record()
    preprocess = {"preprocess": evaluation_string(study, checkpoint)} if study.mode == "linear" else {}
    wanted = ("image_size", "examples") if study.mode == "linear" else [name for name in protocol if name != "seeds"]
    return {
        "suite": study.suite.name,
        "mode": study.mode,
        "checkpoint": {"model": checkpoint.config.name, "sha256": weights_hash(Classifier(checkpoint, copy=False).model)},
        "protocol": {name: protocol[name] for name in wanted},
        **preprocess,
        "set": list(study.changes),
        "sweep": study.sweep,
        "precision": study.machine.precision,
        "tasks": {task.name: _task_identity(task, opened[task.name]) for task in study.suite.tasks},
        "arguments": {"checkpoint": study.checkpoint, "data": {task.name: task.data for task in study.suite.tasks}},
    }


def evaluation_string(study: Study, checkpoint: Checkpoint) -> str:
    """How test images are prepared: in closed form as the checkpoint says, fine-tuned as the protocol does."""
    size, own = study.suite.protocol.image_size, Preprocess(checkpoint.preprocess)
    return str(own.at(*size)) if study.mode == "linear" else evaluation_preprocess(size, own.scales)


def _task_identity(task: Task, parts: Parts) -> dict[str, Any]:
    return {"group": task.group, "crop": task.crop, "flip": task.flip, "images": parts.fingerprint()}


# The work --------------------------------------------------------------------------------------------------------------


class _Scorer:
    """Fine-tunes a task, or answers it in closed form; the model for the latter is made once."""

    def __init__(self, study: Study, checkpoint: Checkpoint, world: World) -> None:
        self.study, self.checkpoint, self.world = study, checkpoint, world
        self.scales = Preprocess(checkpoint.preprocess).scales
        self._frozen: tuple[Classifier, Preprocess, Precision] | None = None

    def finetuned(self, task: Task, parts: Parts, protocol: Protocol, seed: int, out: Path) -> Score:
        return finetune_task(
            task,
            parts,
            protocol,
            checkpoint=self.study.checkpoint,
            scales=self.scales,
            changes=self.study.changes,
            seed=seed,
            data_seed=self.study.data_seed,
            out=out,
            machine=self.study.machine,
            world=self.world,
        )

    def linear(self, parts: Parts, protocol: Protocol) -> Score:
        machine = self.study.machine
        if self._frozen is None:
            clf = Classifier(adapt(self.checkpoint, image_size=protocol.image_size), copy=False)
            self._frozen = clf, clf.preprocess, agreed_precision(machine.precision, self.world).name
        clf, preprocess, precision = self._frozen
        batch = self.study.batch_size
        return fewshot_task(parts, clf, preprocess, batch_size=batch, precision=precision, machine=machine, world=self.world)


def _missing(study: Study, protocol: Protocol, opened: Mapping[str, Parts], results: Results, scorer: _Scorer) -> int:
    """Measure what is not there yet; how many that was."""
    tasks, world, done = study.suite.tasks, scorer.world, 0
    tuned = study.mode == "finetune"
    setting: dict[str, Any] = {"lr": protocol.lr, "steps": protocol.steps} if tuned else {}
    prefix = f"lr-{protocol.lr:g}-steps-{protocol.steps}-" if study.sweep else ""  # over more tasks, another may be the best
    for (number, task), seed in itertools.product(enumerate(tasks, 1), study.all_seeds):
        out = study.out / "runs" / task.name / f"{prefix}seed-{seed}"
        if results.find(task=task.name, seed=seed, **setting) is None:
            done += 1
            parts = opened[task.name]
            which = f", seed {seed}" if tuned else ""
            _say(world, f"task {number} of {len(tasks)}{which}: {task.shown}, {parts.where}")
            score = scorer.finetuned(task, parts, protocol, seed, out) if tuned else scorer.linear(parts, protocol)
            _say(world, f"{task.shown}: {score.accuracy:.2%} of {score.n_test:,} test images in {score.seconds:.0f} s")
            made = setting if tuned else {"l2": score.l2}
            results.add({**_row(task, seed, score), "n_test": score.n_test, "group": task.group, "mode": study.mode, **made})
        if tuned and not study.keep_weights and world.is_main:
            drop_weights(out)
    return done


def _row(task: Task, seed: int, score: Score) -> dict[str, Any]:
    found = {"task": task.name, "seed": seed, "accuracy": score.accuracy, "majority": score.majority, "n_train": score.n_train}
    return {**found, "seconds": round(score.seconds, 2)}


def _swept(study: Study, opened: Mapping[str, Parts], scorer: _Scorer) -> tuple[Protocol, str]:
    """The paper's way: every setting on every task, evaluated on validation images; one setting for all, by the mean."""
    protocol, tasks, world = study.suite.protocol, study.suite.tasks, scorer.world
    settings = [(rate, steps) for steps in protocol.lengths() for rate in protocol.rates()]
    results = Results(study.out / SWEEP, world)
    for (place, (rate, steps)), (number, task) in itertools.product(enumerate(settings, 1), enumerate(tasks, 1)):
        out = study.out / "sweep" / f"lr-{rate:g}-steps-{steps}" / task.name
        if results.find(task=task.name, lr=rate, steps=steps) is None:
            which = f"sweep {place} of {len(settings)} (lr {rate:g}, {steps:,} steps), task {number} of {len(tasks)}"
            _say(world, f"{which}: {task.shown}, evaluated on validation images")
            score = scorer.finetuned(task, opened[task.name], protocol.at(lr=rate, steps=steps), _SWEEP_SEED, out)
            results.add({**_row(task, _SWEEP_SEED, score), "n_validation": score.n_test, "lr": rate, "steps": steps})
        if world.is_main:
            drop_weights(out)
    names = [task.name for task in tasks]
    rate, steps = best_setting(results.rows, names)
    listed = ", ".join(
        f"lr {lr:g} x {length:,} steps {mean_of(results.rows, names, lr, length):.2%}" for lr, length in settings
    )
    sentence = f"lr {rate:g}, {steps:,} steps: the best mean on the validation images of {len(tasks)} tasks ({listed})"
    _say(world, sentence)
    return protocol.at(lr=rate, steps=steps), sentence


def mean_of(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], rate: float, steps: int) -> float:
    """Of one setting over all these tasks; NaN where one has not been tried."""
    own = {row["task"]: row["accuracy"] for row in rows if (row["lr"], row["steps"]) == (rate, steps)}
    return sum(own[task] for task in tasks) / len(tasks) if all(task in own for task in tasks) else math.nan


def best_setting(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Setting:
    """The setting with the best mean over all tasks; of equals the shorter one, then the smaller rate."""
    tried = sorted({(row["lr"], row["steps"]) for row in rows}, key=lambda setting: (setting[1], setting[0]))
    means = {setting: mean_of(rows, tasks, *setting) for setting in tried}
    return max((setting for setting in tried if not math.isnan(means[setting])), key=lambda setting: means[setting])


def _say(world: World, line: str) -> None:
    if world.is_main:
        say(line)


# The end ---------------------------------------------------------------------------------------------------------------


def _summary(study: Study, protocol: Protocol, results: Results) -> Summary:
    """Of the tasks asked for, and of nothing else: a mean is never over tasks that nobody named."""
    setting = (protocol.lr, protocol.steps)
    return summarise(
        replace(study.suite, protocol=protocol),
        [row for row in results.rows if study.mode == "linear" or (row.get("lr"), row.get("steps")) == setting],
        study.all_seeds,
        mode=study.mode,
        checkpoint=study.checkpoint,
        changes=study.changes,
    )


def _written(out: Path, summary: Summary, done: int) -> bool:
    """Whether there was anything to write."""
    text = json.dumps(summary.record(), indent=1, ensure_ascii=False) + "\n"
    path = out / "vtab.json"
    files = [out / name for name in ("table.txt", "table.md", "vtab.png", "vtab.svg")]
    if not done and path.exists() and path.read_text(encoding="utf-8") == text and all(file.exists() for file in files):
        return False
    write_text(out / "table.txt", plain(summary) + "\n")
    write_text(out / "table.md", markdown(summary))
    write_chart(summary, out)
    write_text(path, text)
    return True
