"""Shuffled reading of shards: a fixed number of virtual streams that take turns.

Shards cannot be permuted item by item. Instead each virtual stream has shards of its own, whose order changes from epoch to
epoch, and draws at random from a buffer of their items. The streams take turns; one that has come to the end of its epoch is
passed over, so that every item comes once in every epoch however uneven the shards are. The number of streams belongs to
the run and not to the machine: what comes out depends on no number of workers or processes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.sampling import derive_key
from vitreous.data.source import Item, Stream

_ITEMS = 1000  # held to draw from by each stream
_BYTES = 1 << 29  # held by all streams together, at most: large photographs leave room for fewer


class RoundRobin:
    """Which stream gives example n of an epoch, and which of its items that is: a pure function of n and the lengths.

    In round k every stream that has more than k items gives one. Between two lengths that occur, the streams that still
    give are the same, so a few sums and a search in them are enough.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.total = sum(lengths)
        rounds = [0, *sorted(set(lengths) - {0})]
        self._first = np.array(rounds[:-1], np.int64)  # round in which a stage begins
        self._giving = [np.flatnonzero(np.asarray(lengths) > first) for first in rounds[:-1]]
        sizes = [(last - first) * len(own) for first, last, own in zip(rounds, rounds[1:], self._giving, strict=False)]
        self._starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)

    def __call__(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        stages = np.searchsorted(self._starts, numbers, side="right") - 1
        streams, positions = np.empty_like(numbers), np.empty_like(numbers)
        for stage in np.unique(stages):
            own, giving = stages == stage, self._giving[stage]
            within = numbers[own] - self._starts[stage]
            streams[own] = giving[within % len(giving)]
            positions[own] = self._first[stage] + within // len(giving)
        return streams, positions


def stream_lengths(data: Stream, streams: int) -> list[int] | None:
    """How many items each virtual stream has in an epoch, where the shards' lengths are known."""
    lengths = data.shard_lengths()
    return None if lengths is None else [sum(lengths[stream::streams]) for stream in range(streams)]


class VirtualStream:
    """One virtual stream: of one epoch, or endless where lengths are not known; in the shards' order if not `shuffled`."""

    def __init__(self, data: Stream, stream: int, streams: int, seed: int, epoch: int | None, shuffled: bool) -> None:
        self.data, self.stream, self.seed, self.epoch = data, stream, seed, epoch
        self.shards = range(stream, len(data.shards), streams)
        self.most = _BYTES // streams
        self.position = 0  # of the next item
        self.ended = False
        self._items: Iterator[tuple[Item, int]]
        if not shuffled:
            self._items = ((item, 0) for shard in self.shards for item in data.read(shard))
        else:
            self._items = self._endless() if epoch is None else self._shuffled(epoch)

    def at(self, position: int) -> tuple[Item, int] | None:
        """The item at that position, which must not lie behind, and its epoch; None after the end."""
        for found in self._items:  # those in between are read and not decoded, which is most of the work
            self.position += 1
            if self.position > position:
                return found
        self.ended = True
        return None

    def _endless(self) -> Iterator[tuple[Item, int]]:
        for epoch in itertools.count():
            before = self.position
            yield from self._shuffled(epoch)
            if self.position == before:
                raise VitreousError(f"{self.data.where}: the shards of stream {self.stream} hold no images; leave them out")

    def _shuffled(self, epoch: int) -> Iterator[tuple[Item, int]]:
        rng = random.Random(derive_key("stream", self.seed, epoch, self.stream))
        shards = sorted(self.shards, key=lambda shard: derive_key("shard", self.seed, epoch, shard))
        held: list[Item] = []
        size = 0
        for item in itertools.chain.from_iterable(map(self.data.read, shards)):
            held.append(item)
            size += _count_bytes(item)
            while len(held) > _ITEMS or (size > self.most and len(held) > 1):
                drawn = _draw_item(held, rng)
                size -= _count_bytes(drawn)
                yield drawn, epoch
        while held:
            yield _draw_item(held, rng), epoch


def _draw_item(held: list[Item], rng: random.Random) -> Item:
    chosen = int(rng.random() * len(held))
    held[chosen], held[-1] = held[-1], held[chosen]
    return held.pop()


def _count_bytes(item: Item) -> int:
    return len(item.content) if isinstance(item.content, bytes) else item.content.nbytes
