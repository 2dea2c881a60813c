"""How a run is going, on stderr: a bar with speed, time left, loss, learning rate and memory; elsewhere plain lines."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch

from vitreous.core import progress
from vitreous.core.printable import printable
from vitreous.training.callbacks import Callback

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_REDRAWN = 0.1  # seconds between changes of the bar: steps can be far shorter
_CPU = torch.device("cpu")


class Display(Callback):
    """A bar on a terminal, a line every ten seconds elsewhere, nothing inside `progress.silenced()`.

    `start` is the step that a resumed run begins at.
    """

    def __init__(self, title: str, steps: int, start: int = 0, batch_size: int = 1, device: torch.device = _CPU) -> None:
        self._title = printable(title)
        self._steps = steps
        self._done = start
        self._batch_size = batch_size
        self._device = device
        self._loss: float | None = None
        self._speed = 0.0  # images a second, smoothed: the time left should not jump with every step
        self._began = time.monotonic()
        self._told = -math.inf
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if progress.is_silent():
            return self
        if _on_terminal():
            self._start_bar()
        else:
            self._told = self._began
            resumed = f", from step {self._done:,}" if self._done else ""
            progress.say(f"{self._title}: {self._steps:,} steps of {self._batch_size:,} images{resumed}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif kind is None and not progress.is_silent():  # on an error no last line: it was not finished
            progress.say(
                f"{self._title}: {self._done:,} of {self._steps:,} steps done in {clock(time.monotonic() - self._began)}"
            )

    def on_step(self, step: int, loss: float, lr: float, images_per_second: float) -> None:
        self._done = step
        self._loss = loss
        if images_per_second > 0:  # just after a record the loop has nothing to tell it by
            self._speed = 0.9 * self._speed + 0.1 * images_per_second if self._speed else images_per_second
        now = time.monotonic()
        if progress.is_silent() or now - self._told < (_REDRAWN if self._bar else progress.INTERVAL):
            return
        self._told = now
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, figures=f"{step:,}/{self._steps:,} {self._figures(lr, short=True)}")
        else:
            share = f" ({step / self._steps:.0%})" if self._steps else ""
            progress.say(f"{self._title}: {step:,} of {self._steps:,}{share}, {self._figures(lr, short=False)}")

    def on_message(self, line: str) -> None:
        """A line above the bar, or among the plain lines."""
        if progress.is_silent():
            return
        for part in line.splitlines():
            if self._bar is None:
                progress.say(part)
            else:
                from rich.text import Text

                self._bar.console.print(Text(printable(part)), soft_wrap=True)

    def _start_bar(self) -> None:
        from rich import progress as rich
        from rich.console import Console

        console = Console(stderr=True)
        spare = console.width - len(self._title) - len(f"{self._steps:,}") * 2 - 62  # 62: the longest figures, and gaps
        columns: list[rich.ProgressColumn] = [rich.TextColumn("{task.fields[figures]}", markup=False)]
        if spare >= 6:  # on a narrow terminal the figures say most
            columns.insert(0, rich.BarColumn(bar_width=min(40, spare)))
        if spare >= 0:
            columns.insert(0, rich.TextColumn("{task.description}", markup=False))
        # Standard output stays where it is: it may be a pipe that somebody reads.
        self._bar = rich.Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty())
        self._task = self._bar.add_task(self._title, total=self._steps, completed=self._done, figures="starting")
        self._bar.start()

    def _figures(self, lr: float, short: bool) -> str:
        left = self._batch_size * (self._steps - self._done) / self._speed if self._speed else math.nan
        memory = memory_in_use(self._device)
        parts = [
            f"{self._speed:,.{0 if self._speed >= 10 else 1}f} {'img/s' if short else 'images/s'}" if self._speed else "",
            f"{clock(left)} left" if math.isfinite(left) else "",
            f"loss {self._loss:.4g}" if self._loss is not None else "",
            f"lr {lr:.3g}",
            f"{memory / 1e9:.2f} GB" if memory else "",
        ]
        return (" · " if short else ", ").join(part for part in parts if part)


def clock(seconds: float) -> str:
    """12:05, or 3:12:05 from an hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def memory_in_use(device: torch.device) -> int:
    """Bytes that this process holds on `device`: for a CPU its resident set, without the loader's workers.

    An allocator's reserve counts, as other processes cannot have it. 0 where the system does not say.
    """
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    try:
        import resource
    except ImportError:  # Windows
        return 0
    with contextlib.suppress(OSError, ValueError, IndexError):  # Linux
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # bytes there, kibibytes elsewhere


def _on_terminal() -> bool:
    """A terminal that can redraw a line; Emacs' shell and the like call themselves dumb."""
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    return not Console(stderr=True).is_dumb_terminal
