"""Dynamic batching: requests that wait for the same model are run together, by one thread.

One thread, because torch already spreads a batch over all cores, and because looking inside a model hangs hooks on it. It
takes the oldest item and all that wait for the same thing, up to a batch. An item waits for company only while some is on
its way (`expected`) and never longer than `wait` seconds from its arrival: a caller who is alone is served at once, and where
the model was busy meanwhile, the wait is over already.

The queue is bounded. An item whose future was cancelled, because its caller has gone or its time is up, is dropped before it
is run.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

LONGEST = 60  # seconds: nobody is told to come back later than this
_MEMORY = 0.3  # weight of the newest batch in the pace


class Full(Exception):
    """No more can wait; `seconds` is when there should be room again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the queue is full for about {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True, eq=False)
class _Item:
    key: Hashable
    content: Any
    most: int  # in one batch with this one
    arrived: float = field(default_factory=time.monotonic)
    result: Future[Any] = field(default_factory=Future)


class Batcher:
    """`run(key, contents)` gives one result for each content, in their order."""

    def __init__(
        self,
        run: Callable[[Any, Sequence[Any]], Sequence[Any]],
        *,
        max_batch: int,
        queue: int,
        wait: float,
        ran: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._run, self._ran = run, ran
        self.max_batch, self.queue, self._wait = max_batch, queue, wait
        self._items: deque[_Item] = deque()
        self._coming: Counter[Hashable] = Counter()
        self._changed = threading.Condition()
        self._pace = 0.0  # seconds for each item, lately
        self._running = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, key: Hashable, content: Any, most: int | None = None) -> Future[Any]:
        """A result to wait for; cancel it to give up. At most `most` of the same key are run together."""
        item = _Item(key, content, min(most or self.max_batch, self.max_batch))
        with self._changed:
            if self._closed or len(self._items) >= self.queue:
                raise Full(self._seconds())
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="vitreous-model", daemon=True)
                self._thread.start()
            self._items.append(item)
            self._changed.notify_all()
        item.result.add_done_callback(self._forget_cancelled)
        return item.result

    @contextmanager
    def expected(self, key: Hashable) -> Iterator[None]:
        """An item of this key is being made ready: it is worth a moment's wait."""
        with self._changed:
            self._coming[key] += 1
        try:
            yield
        finally:
            with self._changed:
                self._coming[key] -= 1
                if not self._coming[key]:
                    del self._coming[key]
                self._changed.notify_all()

    @property
    def waiting(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        return self._closed or self.waiting >= self.queue

    def retry_after(self) -> int:
        """Whole seconds until what waits now will be done, by the recent pace."""
        with self._changed:
            return self._seconds()

    def close(self, seconds: float = 0.0) -> bool:
        """Nothing more is taken. What waits is still run, for so many seconds; the rest is cancelled. Whether all was run."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
        with self._changed:
            left = list(self._items)
            self._items.clear()
        for item in left:
            item.result.cancel()
        return not left and (self._thread is None or not self._thread.is_alive())

    def settle(self, seconds: float) -> bool:
        """Waits until there is nothing to do, so long at most; whether it came to that.

        To be done before the program ends: a thread that is ended in the middle of a batch takes the program down with it
        (C++ has no way to leave its frames), and the exit code is lost.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._items and not self._running, seconds)

    def _seconds(self) -> int:
        return max(1, min(LONGEST, math.ceil((len(self._items) + self._running) * self._pace)))

    def _forget_cancelled(self, result: Future[Any]) -> None:
        """Gives the place in the queue back at once, not when its turn comes."""
        if result.cancelled():
            with self._changed:
                self._items = deque(item for item in self._items if item.result is not result)
                self._changed.notify_all()

    def _work(self) -> None:
        while batch := self._next():
            began = time.monotonic()
            results: Sequence[Any] = ()
            fault: BaseException | None = None
            try:
                results = self._run(batch[0].key, [item.content for item in batch])
                if len(results) != len(batch):
                    raise RuntimeError(f"{len(results)} results for {len(batch)} items")
            except BaseException as error:
                fault = error
            each = (time.monotonic() - began) / len(batch)
            self._ran(len(batch))  # first: who has an answer may ask at once how many were given
            _deliver(batch, results, fault)
            with self._changed:
                self._running = 0
                self._changed.notify_all()
                self._pace = each if not self._pace else (1 - _MEMORY) * self._pace + _MEMORY * each
            del batch, results, fault  # or the last images would stay until the next come

    def _next(self) -> list[_Item]:
        """The next batch, of items that are still wanted; empty when all is over."""
        while True:
            with self._changed:
                while not self._items and not self._closed:
                    self._changed.wait()
                if not self._items:
                    return []
                oldest = self._items[0]
                until = oldest.arrived + self._wait
                while self._alike(oldest) < oldest.most and self._coming[oldest.key] and not self._closed:
                    left = until - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        break
                batch = self._taken(oldest)
                self._running = len(batch)
                self._changed.notify_all()
            if batch:
                return batch

    def _alike(self, one: _Item) -> int:
        return sum(item.key == one.key for item in self._items)

    def _taken(self, oldest: _Item) -> list[_Item]:
        taken: list[_Item] = []
        left: deque[_Item] = deque()
        for item in self._items:
            if item.key == oldest.key and len(taken) < oldest.most:
                taken.append(item)
            else:
                left.append(item)
        self._items = left
        return [item for item in taken if item.result.set_running_or_notify_cancel()]


def _deliver(batch: Sequence[_Item], results: Sequence[Any], fault: BaseException | None) -> None:
    for position, item in enumerate(batch):
        if fault is None:
            item.result.set_result(results[position])
        else:
            item.result.set_exception(fault)
