"""A stream of shards, read as a fixed number of virtual streams.

Shards cannot be permuted item by item. Instead each virtual stream has shards of its own, whose order changes from epoch to
epoch, and draws from a buffer of their items by chance. The number of streams belongs to the run and not to the machine, so
that what comes out depends on no number of workers or processes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from vitreous.data.order import key
from vitreous.data.source import Item, Stream
from vitreous.errors import VitreousError

_BUFFER = 1000  # items held to draw from


class VirtualStream:
    """One virtual stream from a position on: items and their epoch, drawn from a buffer if endless, else in order."""

    def __init__(self, data: Stream, stream: int, streams: int, seed: int, endless: bool, position: int) -> None:
        self.data, self.stream, self.seed = data, stream, seed
        self.shards = range(stream, len(data.shards), streams)
        self.position = 0
        lengths, first = data.exact_lengths(), 0
        if endless and lengths and (own := sum(lengths[shard] for shard in self.shards)):
            first = position // own  # epochs that need not be read
            self.position = first * own
        self._items = self._endless(first) if endless else self._once()
        for _ in itertools.islice(self, position - self.position):  # read and not decoded, which is most of the work
            pass

    def __iter__(self) -> VirtualStream:
        return self

    def __next__(self) -> tuple[Item, int]:
        found = next(self._items)
        self.position += 1
        return found

    def _once(self) -> Iterator[tuple[Item, int]]:
        for shard in self.shards:
            for item in self.data.read(shard):
                yield item, 0

    def _endless(self, first: int) -> Iterator[tuple[Item, int]]:
        for epoch in itertools.count(first):
            rng = random.Random(key("stream", self.seed, epoch, self.stream))
            shards = sorted(self.shards, key=lambda shard, e=epoch: key("shard", self.seed, e, shard))  # type: ignore[misc]
            held: list[Item] = []
            delivered = 0
            for item in itertools.chain.from_iterable(map(self.data.read, shards)):
                held.append(item)
                if len(held) > _BUFFER:
                    yield _drawn(held, rng), epoch
                    delivered += 1
            while held:
                yield _drawn(held, rng), epoch
                delivered += 1
            if not delivered:
                raise VitreousError(f"{self.data.where}: the shards of stream {self.stream} hold no images")


def _drawn(held: list[Item], rng: random.Random) -> Item:
    chosen = int(rng.random() * len(held))
    held[chosen], held[-1] = held[-1], held[chosen]
    return held.pop()
