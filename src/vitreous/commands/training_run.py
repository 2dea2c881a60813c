"""What `pretrain` and `finetune` share: from options to a finished run, and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitreous.core.files import user_path
from vitreous.core.table import table


@dataclass(frozen=True)
class Run:
    """A finished run."""

    out: str
    result: Mapping[str, Any]  # all that was measured, as --json prints it
    already: bool  # it had been finished before
    notes: tuple[str, ...] = ()
    exit_code: int = 0

    @property
    def checkpoint(self) -> Path:
        return user_path(self.out) / "checkpoint"

    @property
    def steps(self) -> int:
        return int(self.result["steps"])

    @property
    def seconds(self) -> float:
        return float(self.result["seconds"])

    @property
    def loss(self) -> float | None:
        """Of the held-out images; None where there were none."""
        return self.result.get("loss")

    @property
    def top1(self) -> float | None:
        """Of the held-out images, from 0 to 1; None where nothing was classified."""
        return self.result.get("top1")

    @property
    def top5(self) -> float | None:
        """None, too, where there are too few classes for it to say anything."""
        return self.result.get("top5")

    def text(self) -> str:
        from vitreous.evaluation.majority import beats_majority

        rows = [(name, _shown(name, value)) for name, value in self.result.items() if not isinstance(value, dict)]
        for name in ("raw", "best", "test"):
            if isinstance(found := self.result.get(name), dict):
                rows += [(f"{name} {key}", _shown(key, value)) for key, value in found.items()]
        classified = "top1" in self.result.get("best", {})  # masked patches go by the loss
        has = "curves, classes and mistakes" if classified else "the curves"
        rate = self.result.get("majority")
        lost = rate is not None and not beats_majority(self.result["top1"], rate)
        warned = "\nno better than always predicting the largest class: nothing was learnt" if lost else ""
        return table(("result", "value"), rows) + warned + f"\n\n{self.out}/report.html has {has}"

    def records(self) -> list[dict[str, Any]]:
        return [{"out": self.out, "finished_before": self.already, **self.result}]


def _shown(name: str, value: Any) -> str:
    if isinstance(value, float) and name in ("top1", "top5", "majority") and 0 <= value <= 1:
        return f"{value:.2%}"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def start_run(command: Literal["pretrain", "finetune"], given: Mapping[str, Any]) -> Run:
    """`given` holds the options that were given and no others."""
    from vitreous.core.device import choose_device
    from vitreous.core.distributed import init_distributed
    from vitreous.training.build_options import build_options

    options, previous = build_options(command, given)
    with init_distributed(choose_device(options.device)) as world:
        from vitreous.training.sweep import run_training

        finished = run_training(options, previous, world)
    return Run(options.out, finished.result, finished.already, finished.notes)
