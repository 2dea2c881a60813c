"""The events of a run, and what hears of them: the run folder, the display, trackers and the writer of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitreous.training.validation import Evaluation


class Callback:
    """Hears of the events that it has a method for. Every rank calls every callback."""

    def on_step(self, step: int, loss: float, lr: float, images_per_second: float) -> None:
        """So many steps are done."""

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl: of training steps, or of an evaluation."""

    def on_evaluated(self, evaluation: Evaluation, is_best: bool) -> None:
        """The held-out images were evaluated, better than ever before or not."""

    def on_message(self, line: str) -> None:
        """Something for the user to read."""
