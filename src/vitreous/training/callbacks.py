"""The events of a run (step done, metrics, evaluated, saved), and who hears of them: run folder, display, trackers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitreous.training.progress_display import Display
from vitreous.training.run_folder import RunFolder
from vitreous.training.trackers import Trackers
from vitreous.training.validation import Evaluation


@dataclass(frozen=True)
class StepDone:
    step: int
    loss: float
    lr: float
    images_per_second: float


@dataclass(frozen=True)
class Evaluated:
    step: int
    split: str
    evaluation: Evaluation
    is_best: bool  # so far


class Callback:
    """Hears of the events that it has a method for. Every rank calls every callback."""

    def on_step(self, event: StepDone) -> None: ...

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl: of training steps, or of an evaluation."""

    def on_evaluated(self, event: Evaluated) -> None: ...

    def on_saved(self, step: int) -> None: ...

    def on_message(self, line: str) -> None: ...


@dataclass(frozen=True)
class MetricsWriter(Callback):
    """metrics.jsonl and log.txt."""

    folder: RunFolder

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        self.folder.record(record)

    def on_message(self, line: str) -> None:
        self.folder.log(line)

    def on_evaluated(self, event: Evaluated) -> None:
        self.folder.log(_sentence(event))


@dataclass(frozen=True)
class ProgressDisplay(Callback):
    display: Display

    def on_step(self, event: StepDone) -> None:
        self.display.step(event.step, event.loss, event.lr, event.images_per_second)

    def on_message(self, line: str) -> None:
        self.display.say(line)

    def on_evaluated(self, event: Evaluated) -> None:
        self.display.say(_sentence(event))


@dataclass(frozen=True)
class TrackerCallback(Callback):
    trackers: Trackers

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        self.trackers.log(record)


def _sentence(event: Evaluated) -> str:
    return f"step {event.step:,}: {event.split} {event.evaluation.describe()}"
