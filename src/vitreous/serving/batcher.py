"""Dynamic batching: requests that wait for the same model are run together, by one thread.

One thread, because torch already spreads a batch over all cores, and because looking inside a model hangs hooks on it. It
takes the oldest item and all that wait for the same thing, up to a batch. An item waits for company only while some is on
its way (`expected`) and never longer than `wait` seconds from its arrival: a caller who is alone is served at once, and where
the model was busy meanwhile, the wait is over already.

The queue is bounded. An item whose future was cancelled, because its caller has gone or its time is up, is dropped before it
is run. Everything but the model runs in the event loop, so that there are no locks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from vitreous.serving.http_errors import busy

LONGEST = 60  # seconds: the longest Retry-After
NEWEST = 0.3  # weight of the newest batch in the mean time of an item


@dataclass(frozen=True, eq=False)
class Item:
    key: Hashable
    content: Any
    most: int  # in one batch with this one
    arrived: float
    result: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """`run(key, contents)` gives one result for each content, in their order; `ran` is called with the size of every batch."""

    def __init__(
        self,
        run: Callable[[Any, Sequence[Any]], Sequence[Any]],
        *,
        max_batch: int,
        queue: int,
        wait: float,
        ran: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.run, self.ran = run, ran
        self.max_batch, self.queue, self.wait = max_batch, queue, wait
        self.running = 0  # items in the batch that the model runs
        self.item_seconds = 0.0  # that the model took, lately
        self._items: list[Item] = []
        self._coming: Counter[Hashable] = Counter()
        self._changed = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        # Python waits for this thread before it ends: one that is ended inside torch would take the program down with it.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "vitreous-model")
        self._batch: concurrent.futures.Future[Sequence[Any]] | None = None

    @property
    def waiting(self) -> int:
        return sum(not item.result.done() for item in self._items)

    @property
    def full(self) -> bool:
        return self.waiting >= self.queue

    def retry_after(self) -> int:
        """Whole seconds until what waits now will be done, by the recent time of an item."""
        return max(1, min(LONGEST, math.ceil((self.waiting + self.running) * self.item_seconds)))

    def submit(self, key: Hashable, content: Any, most: int | None = None) -> asyncio.Future[Any]:
        """A result to wait for; cancel it to give up. At most `most` of the same key are run together."""
        if self.full:
            raise busy("the queue is full", self.retry_after())
        item = Item(key, content, min(most or self.max_batch, self.max_batch), asyncio.get_running_loop().time())
        self._items.append(item)
        self._changed.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return item.result

    @contextmanager
    def expected(self, key: Hashable) -> Iterator[None]:
        """An item of this key is being made ready: it is worth a moment's wait."""
        self._coming[key] += 1
        try:
            yield
        finally:
            self._coming[key] -= 1
            self._changed.set()

    def close(self, seconds: float = 0.0) -> bool:
        """Nothing more is run. Waits for the batch that the model runs, so long at most; whether it is done by then."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        return self._batch is None or not concurrent.futures.wait([self._batch], seconds).not_done

    async def _work(self) -> None:
        """Runs what waits, until nothing does."""
        while self._items:
            oldest = self._items[0]
            with suppress(TimeoutError):
                async with asyncio.timeout_at(oldest.arrived + self.wait):
                    while self._coming[oldest.key] and len(self._alike(oldest)) < oldest.most:
                        self._changed.clear()
                        await self._changed.wait()
            batch = self._alike(oldest)[: oldest.most]
            self._items = [item for item in self._items if item not in batch and not item.result.done()]
            if batch:
                await self._run_batch(batch)

    def _alike(self, one: Item) -> list[Item]:
        return [item for item in self._items if item.key == one.key and not item.result.done()]

    async def _run_batch(self, batch: Sequence[Item]) -> None:
        loop = asyncio.get_running_loop()
        began, self.running = loop.time(), len(batch)
        results: Sequence[Any] = ()
        fault: Exception | None = None
        try:
            self._batch = self._thread.submit(self.run, batch[0].key, [item.content for item in batch])
            results = await asyncio.wrap_future(self._batch)
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results for {len(batch)} items")
        except Exception as error:
            fault = error
        self.running, self._batch = 0, None
        seconds = (loop.time() - began) / len(batch)
        self.item_seconds = (1 - NEWEST) * self.item_seconds + NEWEST * seconds if self.item_seconds else seconds
        self.ran(len(batch))  # first: who has an answer may ask at once how many were given
        for position, item in enumerate(batch):
            if item.result.done():
                continue  # its caller has left meanwhile
            if fault is None:
                item.result.set_result(results[position])
            else:
                item.result.set_exception(fault)
