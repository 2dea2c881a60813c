"""From results to means: of each task over its seeds, of each group and of all tasks, beside the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.studies.suite import Protocol, Suite, Task

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Mean:
    """An accuracy in 0..1, and its standard deviation over the seeds: NaN for one seed."""

    value: float
    spread: float
    paper: tuple[float, ...] = ()  # in percent, over the same tasks
    majority: float | None = None  # of always predicting the largest class, over the same tasks; None: not recorded

    def record(self) -> dict[str, Any]:
        return {"accuracy": self.value, "spread": None if math.isnan(self.spread) else self.spread, "majority": self.majority}


@dataclass(frozen=True)
class TaskScore:
    task: Task
    mean: Mean
    accuracies: tuple[float, ...]  # in the order of the seeds
    n_train: int | None
    n_test: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    suite: Suite
    mode: str
    checkpoint: str
    changes: tuple[str, ...]
    seeds: tuple[int, ...]
    tasks: tuple[TaskScore, ...]  # group by group
    groups: Mapping[str, Mean]
    mean: Mean
    preprocess: str = ""  # of the test images

    @property
    def counted(self) -> str:
        """Which mean it is: never one over some tasks by the name of the whole."""
        own, of = len(self.tasks), self.suite.of
        return f"mean of {own}" if own == of else f"mean of {own} of {of}"

    def departures(self) -> tuple[str, ...]:
        """Why the published figures beside are no match, if they are not."""
        published, own = self.suite.published, self.suite.protocol
        if published is None:
            return ()
        if self.mode == "linear":
            return (f"closed form on frozen features at {_size(own)}, where the paper fine-tunes at {_size(published)}",)
        said = [f"{name} {now}, where the paper has {was}" for name, was, now in _different(published, own)]
        said += [f"--set {change}" for change in self.changes]
        if own.seeds and len(self.seeds) < published.seeds:
            said.append(f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}, where the paper has {published.seeds}")
        for score in self.tasks:
            if score.task.test_images not in (None, score.n_test):
                said.append(f"{score.task.shown}: {score.n_test:,} test images of the {score.task.test_images:,} published")
        return tuple(said)

    def record(self) -> dict[str, Any]:
        """For vtab.json."""
        *tasks, mean = self.records()
        return {
            "suite": self.suite.name,
            "mode": self.mode,
            "checkpoint": self.checkpoint,
            "protocol": self.suite.protocol.record(),
            "set": list(self.changes),
            "seeds": list(self.seeds),
            "paper": list(self.suite.paper),
            "departures": list(self.departures()),
            "tasks": tasks,
            "mean": mean,
        }

    def records(self) -> list[dict[str, Any]]:
        """One for each task, and one for the mean."""
        found: list[dict[str, Any]] = []
        for score in self.tasks:
            own = {"task": score.task.name, "group": score.task.group, **score.mean.record()}
            own |= {"accuracies": list(score.accuracies), "seeds": list(self.seeds), "mode": self.mode}
            own["preprocess"] = self.preprocess
            own |= {"n_train": score.n_train, "n_test": score.n_test, "seconds": round(score.seconds, 2)}
            found.append(own | ({"paper": self._paper(score.task.paper)} if score.task.paper else {}))
        groups = {name: mean.record() for name, mean in self.groups.items()}
        last = {"task": "mean", **self.mean.record(), "tasks": len(self.tasks), "of": self.suite.of, "groups": groups}
        last |= {"preprocess": self.preprocess}
        last |= {"seeds": list(self.seeds), "mode": self.mode, "seconds": round(sum(score.seconds for score in self.tasks), 2)}
        return [*found, last | ({"paper": self._paper(self.mean.paper)} if self.mean.paper else {})]

    def _paper(self, figures: Sequence[float]) -> dict[str, float]:
        return dict(zip(self.suite.paper, figures, strict=True))


def summarise(
    suite: Suite,
    rows: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    *,
    mode: str,
    checkpoint: str,
    changes: tuple[str, ...] = (),
) -> Summary:
    """Every task of the suite has a row for every seed."""
    found = {(row["task"], row["seed"]): row for row in rows}
    ordered = [task for group in suite.groups for task in suite.tasks if task.group == group]
    matrix = np.array([[found[task.name, seed]["accuracy"] for seed in seeds] for task in ordered], np.float64)
    scores = []
    for task, accuracies in zip(ordered, matrix, strict=True):
        own = [found[task.name, seed] for seed in seeds]
        seconds = sum(float(row["seconds"]) for row in own)
        mean = _mean(accuracies[None], (task.paper,), [own[0].get("majority")])
        scores.append(TaskScore(task, mean, tuple(accuracies.tolist()), own[0]["n_train"], own[0]["n_test"], seconds))
    groups = {}
    for group in suite.groups:
        chosen = [number for number, task in enumerate(ordered) if task.group == group]
        own_rates = [scores[number].mean.majority for number in chosen]
        groups[group] = _mean(matrix[chosen], [ordered[number].paper for number in chosen], own_rates)
    whole = _mean(matrix, [task.paper for task in ordered], [score.mean.majority for score in scores])
    return Summary(suite, mode, checkpoint, changes, tuple(seeds), tuple(scores), groups, whole)


def _mean(matrix: Floats, paper: Sequence[tuple[float, ...]], majority: Sequence[float | None]) -> Mean:
    """Over (tasks, seeds): tasks count alike, and the spread is that of the tasks' mean from seed to seed."""
    by_seed = matrix.mean(axis=0)
    spread = float(by_seed.std(ddof=1)) if len(by_seed) > 1 else math.nan
    figures = tuple(np.mean(np.array(paper, np.float64), axis=0).tolist()) if all(paper) else ()
    known = [rate for rate in majority if rate is not None]
    return Mean(float(by_seed.mean()), spread, figures, sum(known) / len(known) if len(known) == len(majority) else None)


def _different(published: Protocol, own: Protocol) -> list[tuple[str, str, str]]:
    names = ("steps", "lr", "batch_size", "image_size", "warmup")
    return [
        (name, _value(getattr(published, name)), _value(getattr(own, name)))
        for name in names
        if getattr(published, name) != getattr(own, name)
    ]


def _value(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _size(protocol: Protocol) -> str:
    height, width = protocol.image_size
    return f"{height}" if height == width else f"{height} x {width}"
