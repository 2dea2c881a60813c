"""How far a long command has come, on stderr: a bar on a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from vitreous.printable import printable

Advance = Callable[[int], None]
"""Says that so many more are done."""

INTERVAL = 10.0  # seconds between plain lines: a log shows that the command lives, and is not filled

_silent: ContextVar[bool] = ContextVar("vitreous_silent", default=False)


@contextlib.contextmanager
def silenced(silent: bool = True) -> Iterator[None]:
    """Nothing is shown inside. The command line wraps a verb in it for --quiet, which no verb has to know of."""
    token = _silent.set(silent)
    try:
        yield
    finally:
        _silent.reset(token)


def silent() -> bool:
    return _silent.get()


def say(line: str) -> None:
    """One line on stderr, whatever names it holds; nothing where nothing is to be shown."""
    if not silent():
        print(printable(line, sys.stderr.encoding or "utf-8"), file=sys.stderr, flush=True)


@contextlib.contextmanager
def shown(title: str, total: int | None) -> Iterator[Advance]:
    """A function to call with how many more are done. `total` is None where nobody knows it beforehand."""
    if silent():
        yield lambda more: None
    elif sys.stderr.isatty():
        with _bar(title, total) as advance:
            yield advance
    else:
        with _lines(title, total) as advance:
            yield advance


@contextlib.contextmanager
def _bar(title: str, total: int | None) -> Iterator[Advance]:
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), rich.MofNCompleteColumn())
    times = (rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
    with rich.Progress(*columns, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(title), total=total)
        yield lambda more: bar.advance(task, more)


@contextlib.contextmanager
def _lines(title: str, total: int | None) -> Iterator[Advance]:
    done, began = 0, time.monotonic()
    last = began
    whole = "" if total is None else f" of {total:,}"

    def advance(more: int) -> None:
        nonlocal done, last
        done += more
        if (now := time.monotonic()) - last >= INTERVAL:
            last = now
            say(f"{title}: {done:,}{whole}" + (f" ({done / total:.0%})" if total else ""))

    say(f"{title}: " + ("begun" if total is None else f"{total:,} to do"))
    yield advance  # on an error no last line: it was not finished
    say(f"{title}: {done:,}{whole} done in {time.monotonic() - began:.1f} s")
