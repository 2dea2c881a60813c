"""Progress of a long command on stderr: a bar on a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from vitreous.core.printable import printable

Advance = Callable[[int], None]
"""Says that so many more are done."""
Bytes = Callable[[int, int | None], None]
"""Says how many bytes there are by now, and how many there will be where that is known."""

INTERVAL = 10.0  # seconds between plain lines: a log shows that the command lives, and is not filled

_silent: ContextVar[bool] = ContextVar("vitreous_silent", default=False)


@contextlib.contextmanager
def silence(silent: bool = True) -> Iterator[None]:
    """Nothing is shown inside. The command line wraps a command in it for --quiet, which commands need not know."""
    token = _silent.set(silent)
    try:
        yield
    finally:
        _silent.reset(token)


def is_silent() -> bool:
    return _silent.get()


def say(line: str) -> None:
    """One line on stderr, whatever names it holds; nothing where nothing is to be shown."""
    if not is_silent():
        print(printable(line, sys.stderr.encoding or "utf-8"), file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Advance]:
    """A function to call with how many more are done. `total` is None where it is not known beforehand."""
    if is_silent():
        yield lambda more: None
    elif sys.stderr.isatty():
        with _show_bar(title, total, "MofNCompleteColumn", "TimeElapsedColumn") as update:
            yield lambda more: update(advance=more)
    else:
        with _print_lines(title, total) as advance:
            yield advance


@contextlib.contextmanager
def _show_bar(title: str, total: int | None, *columns: str) -> Iterator[Callable[..., None]]:
    from rich import progress as rich
    from rich.console import Console

    text, more = rich.TextColumn("{task.description}", markup=False), [getattr(rich, name)() for name in columns]
    shape = (text, rich.BarColumn(), *more, rich.TimeRemainingColumn())
    with rich.Progress(*shape, console=Console(stderr=True), transient=True) as bar:
        yield functools.partial(bar.update, bar.add_task(printable(title), total=total))


@contextlib.contextmanager
def _print_lines(title: str, total: int | None) -> Iterator[Advance]:
    done, began = 0, time.monotonic()
    last = began
    whole = "" if total is None else f" of {total:,}"

    def advance(more: int) -> None:
        nonlocal done, last
        done += more
        if (now := time.monotonic()) - last >= INTERVAL:
            last = now
            say(f"{title}: {done:,}{whole}" + (f" ({done / total:.0%})" if total else ""))

    say(f"{title}: " + ("started" if total is None else f"{total:,} to do"))
    yield advance  # on an error no last line: it was not finished
    say(f"{title}: {done:,}{whole} done in {time.monotonic() - began:.1f} s")


@contextlib.contextmanager
def byte_progress(what: str, doing: str = "downloading", did: str = "downloaded") -> Iterator[Bytes]:
    """The progress of a file: a bar on a terminal, elsewhere a line at the start and one at the end."""
    if sys.stderr.isatty() and not is_silent():
        with _show_bar(f"{doing} {what}", None, "DownloadColumn", "TransferSpeedColumn") as update:
            yield lambda done, total: update(completed=done, total=total)
        return
    last: list[int] = []

    def tell(done: int, total: int | None) -> None:
        if not last:
            already = f", {done / 1e6:,.1f} MB here already" if done else ""
            say(f"{doing} {what}" + (f" ({total / 1e6:,.1f} MB{already})" if total else ""))
        last[:] = [done]

    yield tell
    if last:
        say(f"{did} {what} ({last[0] / 1e6:,.1f} MB)")


def describe_seconds(seconds: float) -> str:
    """12 s, 3 min 12 s or 5 h 3 min."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:,} h {minute} min" if hours else f"{minute} min {second} s" if minute else f"{second} s"
