"""From rows to means, of each task over its seeds, of each group and of all tasks, and their figure beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitreous.studies.rows import Row
from vitreous.studies.study import Axes, Point
from vitreous.studies.study_figure import draw_points
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
    changes: Mapping[str, str]
    seeds: tuple[int, ...]
    tasks: tuple[TaskScore, ...]  # group by group
    groups: Mapping[str, Mean]
    mean: Mean
    preprocess: str  # of the test images

    @property
    def method(self) -> str:
        return "fine-tuned" if self.mode == "finetune" else "closed form on frozen features"

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
        said += [f"--set {name}={value}" for name, value in self.changes.items()]
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
            "set": [f"{name}={value}" for name, value in self.changes.items()],
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
    rows: Sequence[Row],
    seeds: Sequence[int],
    *,
    mode: str,
    checkpoint: str,
    changes: Mapping[str, str] | None = None,
    preprocess: str = "",
) -> Summary:
    """Every task of the suite has a row for every seed."""
    found = {(row["arm"], row["seed"]): row for row in rows}
    scores = []
    for task in (task for group in suite.groups for task in suite.tasks if task.group == group):
        own = [found[task.name, seed] for seed in seeds]
        accuracies = tuple(float(row["accuracy"]) for row in own)
        mean = _mean(np.array([accuracies]), (task.paper,), [own[0].get("majority")])
        seconds = sum(float(row["seconds"]) for row in own)
        scores.append(TaskScore(task, mean, accuracies, own[0]["n_train"], own[0]["n"], seconds))
    groups = {group: _mean_of_tasks([score for score in scores if score.task.group == group]) for group in suite.groups}
    whole = _mean_of_tasks(scores)
    return Summary(suite, mode, checkpoint, changes or {}, tuple(seeds), tuple(scores), groups, whole, preprocess)


def _mean_of_tasks(scores: Sequence[TaskScore]) -> Mean:
    matrix = np.array([score.accuracies for score in scores], np.float64)
    return _mean(matrix, [score.task.paper for score in scores], [score.mean.majority for score in scores])


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


# The figure ------------------------------------------------------------------------------------------------------------


def draw_summary(summary: Summary) -> Figure:
    """A bar for each task and mean, and the paper's figures as points (its Figure 2)."""
    bars = []
    for group, mean in summary.groups.items():
        bars += [(score.task.shown, score.mean) for score in summary.tasks if score.task.group == group]
        bars += [(f"{group}, mean", mean)] if len(summary.groups) > 1 else []
    bars.append((summary.counted, summary.mean))
    ours = summary.checkpoint if len(summary.checkpoint) <= 60 else f"...{summary.checkpoint[-57:]}"  # of a path, its end
    points = [Point(ours, label, 100 * mean.value, *_ends(mean)) for label, mean in bars]
    for place, name in enumerate(summary.suite.paper):
        points += [Point(f"paper: {name}", label, mean.paper[place]) for label, mean in bars]
    interval = "" if math.isnan(summary.mean.spread) else "; lines: one standard deviation over seeds"
    axes = Axes(y_label="accuracy on test images (%)")
    return draw_points(summary.suite.name, axes, points, f"{ours}, {summary.method}{interval}", bars=ours)


def _ends(mean: Mean) -> tuple[float, float] | tuple[None, None]:
    """Of the line that shows how much seeds differ."""
    low, high = 100 * (mean.value - mean.spread), 100 * (mean.value + mean.spread)
    return (None, None) if math.isnan(low) else (max(0.0, low), min(100.0, high))
