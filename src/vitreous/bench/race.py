"""Child processes that take turns: the same moment of a noisy machine weighs on all of them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vitreous.core.errors import one_line
from vitreous.core.untrusted_json import parse_json

WARM_UP = 2  # steps that are not timed: the first ones compile, start workers and fill caches


@dataclass(frozen=True)
class Work:
    """What a contender does; `folder` holds the same weights, images and files for all."""

    what: str
    engine: str
    precision: str
    batch: int
    folder: str
    clock: str = "wall"

    @property
    def library(self) -> str:
        return self.engine.split()[0]

    @property
    def compiled(self) -> bool:
        return self.engine.endswith(" compile")

    @property
    def merged(self) -> int:
        """Tokens that it merges after each layer: `vitreous merged 16`."""
        name, _, count = self.engine.rpartition(" ")
        return int(count) if name.endswith(" merged") else 0


@dataclass(frozen=True)
class Turns:
    """Timings of a contender: seconds of one step in each round, peak memory in bytes, and the file with its outputs."""

    work: Work
    seconds: tuple[float, ...]
    peak_memory: int


class Failed(Exception):
    """A contender that cannot take part; says why in one line."""


class Child:
    """A process of `vitreous.bench.contender`. JSON lines go in and come out."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._complaints = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vitreous.bench.contender"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, text=True, encoding="utf-8",
        )  # fmt: skip
        self._send(asdict(work))

    def _send(self, message: Any) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended, which reading tells
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise Failed(self._describe_death())
        message: dict[str, Any] = parse_json(line)
        if "error" in message:
            raise Failed(message["error"])
        return message

    def _describe_death(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        self._complaints.seek(0)
        lines = [line for line in self._complaints.read().splitlines() if line.strip()]
        return one_line(lines[-1] if lines else f"ended with code {code}")

    def step(self, count: int) -> dict[str, Any]:
        """Runs this many steps: `seconds` of one of them, and the `peak_memory` until now."""
        self._send(count)
        return self.receive()

    def close(self) -> None:
        self._send(0)
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._complaints.close()


@contextlib.contextmanager
def started(work: Work) -> Iterator[Child]:
    child = Child(work)
    try:
        yield child
    finally:
        child.close()


def race(
    works: Sequence[Work], rounds: int, turn: float, check: Callable[[Work], str | None], advance: Callable[[int], None]
) -> tuple[list[Turns], dict[Work, str]]:
    """Turns of about `turn` seconds for all that can take part, and why the others cannot.

    `check` looks at a contender's outputs before anything is timed and says what is wrong with them.
    """
    failures: dict[Work, str] = {}
    counts: dict[Child, int] = {}
    seconds: dict[Child, list[float]] = {}
    peak: dict[Child, int] = {}
    with contextlib.ExitStack() as stack:
        for work in works:  # one after another: none is disturbed while it warms up
            own = contextlib.ExitStack()
            child = own.enter_context(started(work))
            try:
                child.receive()
                if fault := check(work):
                    raise Failed(fault)
                child.step(WARM_UP)
                counts[child] = max(1, round(turn / child.step(1)["seconds"]))
                seconds[child] = []
                stack.push(own.pop_all())
            except Failed as failure:
                failures[work] = str(failure)
            finally:
                own.close()
                advance(1)
        running = list(counts)
        for number in range(rounds):
            shift = number % max(1, len(running))
            for child in running[shift:] + running[:shift]:  # nobody is always first
                try:
                    reply = child.step(counts[child])
                    seconds[child].append(reply["seconds"])
                    peak[child] = reply["peak_memory"]
                except Failed as failure:
                    failures[child.work] = str(failure)
                    running = [other for other in running if other is not child]
            advance(1)
    return [Turns(child.work, tuple(seconds[child]), peak[child]) for child in running], failures
