"""Run tasks in worker processes and return their results in the order of the tasks.

Which worker does a task is fixed beforehand, each worker does its tasks one after another, and the results are awaited in
order. So nothing that comes out depends on timing, and a worker that dies is known by name, with what it was working on.
Large results go through memory that the caller shares (see `loader`); a task says which part of it to use.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing as mp
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from vitreous.core.errors import VitreousError

T = TypeVar("T")
R = TypeVar("R")

_TEXT = 1024  # bytes kept of what a worker is working on
_current: Any = None  # in a worker: memory in which the parent can read it after the worker's death


class WorkerDied(VitreousError):
    """A worker process ended by itself: killed, out of memory, or crashed in a decoder."""

    def __init__(self, message: str, item: str) -> None:
        super().__init__(message)
        self.item = item


def default_workers() -> int:
    """As many as this process may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_current_item(item: str) -> None:
    """Tell, inside a task, what is being worked on: the error names it if this process dies of it."""
    if _current is not None:
        text = item.encode(errors="replace")[: _TEXT - 1]
        ctypes.memmove(_current, text + b"\0", len(text) + 1)


def start_context() -> Any:
    """Fork where there is one: workers start at once and share what the parent has read. Spawn elsewhere."""
    return mp.get_context("fork" if "fork" in mp.get_all_start_methods() and sys.platform != "darwin" else "spawn")


def run_in_order(
    function: Callable[[T], R],
    tasks: Iterable[T],
    workers: int,
    *,
    ahead: int = 2,
    owner: Callable[[T], int] | None = None,
) -> Iterator[R]:
    """`function` of every task, in order; with `workers` 0 in this process.

    At most `ahead` tasks per worker are begun before their results are needed, and `tasks` is drawn from only so far.
    `owner` binds tasks to workers (modulo their number), for functions that remember things; else they take turns.
    """
    if workers < 0:
        raise VitreousError(f"--workers is {workers}; it must be 0 (none) or more")
    if workers == 0:
        yield from map(function, tasks)
        return
    pool: list[_Worker] = []
    try:
        for _ in range(workers):
            pool.append(_Worker(function, [worker.connection for worker in pool]))
        begun: deque[_Worker] = deque()
        upcoming = enumerate(tasks)
        while True:
            while len(begun) < ahead * workers and (entry := next(upcoming, None)):
                number, task = entry
                worker = pool[(owner(task) if owner else number) % workers]
                worker.begin(task)
                begun.append(worker)
            if not begun:
                return
            yield begun.popleft().result()
    finally:
        for worker in pool:
            worker.close()


class _Worker:
    def __init__(self, function: Callable[[Any], Any], siblings: list[Connection]) -> None:
        ctx = start_context()
        self.connection, theirs = ctx.Pipe()
        self._current = ctx.RawArray(ctypes.c_char, _TEXT)
        # A forked child inherits its siblings' ends of the pipes. It must close them, or none would notice the parent's end.
        inherited = [*siblings, self.connection] if ctx.get_start_method() == "fork" else []
        self._process = ctx.Process(target=_run_worker, args=(function, theirs, self._current, inherited), daemon=True)
        with warnings.catch_warnings():  # the parent may have threads (torch does); the child uses none of them
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        # A worker that is never closed and the interpreter at its exit would wait for each other.
        self._at_exit = Finalize(None, self._process.kill, exitpriority=10)

    def begin(self, task: Any) -> None:
        try:
            self.connection.send(task)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None

    def result(self) -> Any:
        try:
            good, value = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._died() from None
        if not good:
            raise value
        return value

    def _died(self) -> WorkerDied:
        self._process.join(5)
        code = self._process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        item = self._current.value.decode(errors="replace")
        remedy = "out of memory? use fewer --workers" if how.endswith("SIGKILL") else "replace or remove that file"
        return WorkerDied(f"{item or 'a worker'}: the process that was working on it died ({how}); {remedy}", item)

    def close(self) -> None:
        self._at_exit.cancel()
        self.connection.close()  # whatever it does, the next word it reads or writes ends it
        self._process.join(1)
        if self._process.is_alive():  # in the middle of a long task
            self._process.kill()
            self._process.join()
        self._process.close()


def _run_worker(function: Callable[[Any], Any], connection: Connection, current: Any, inherited: list[Connection]) -> None:
    """The loop of a worker: task in, result out, until the parent closes the connection."""
    global _current
    _current = current
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # so does a scheduler's; a parent that ends closes the connection, which ends this too
    for other in inherited:
        other.close()
    if "torch" in sys.modules:  # the processes are the parallelism; more threads than cores wait for each other
        sys.modules["torch"].set_num_threads(1)
    with threadpool_limits(1), contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = connection.recv()
            try:
                answer = (True, function(task))
            except Exception as error:
                answer = (False, _make_sendable(error))
            connection.send(answer)


def _make_sendable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else its traceback as text."""
    if isinstance(error, MemoryError):
        return MemoryError(str(error))
    if isinstance(error, VitreousError):
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(error))
            return error
        return VitreousError(str(error))
    return RuntimeError("in a worker process:\n" + "".join(traceback.format_exception(error)))
