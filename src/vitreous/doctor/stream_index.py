"""A stream that was read once as a source like any other: what its items are, and where each is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from vitreous.data.source import Content, Source, Stream


class ScannedItem(NamedTuple):
    id: str
    labels: tuple[int, ...]
    shard: int
    position: int


class ScannedStream(Source):
    """The items of a stream by number. To read one again, everything before it in its shard is read too."""

    def __init__(self, stream: Stream, scanned: Sequence[ScannedItem]) -> None:
        self.where, self.split, self.classes = stream.where, stream.split, stream.classes
        self.stream, self.scanned = stream, scanned

    def __len__(self) -> int:
        return len(self.scanned)

    def id(self, index: int) -> str:
        return self.scanned[index].id

    def labels(self, index: int) -> tuple[int, ...]:
        return self.scanned[index].labels

    def read(self, index: int) -> Content:
        found = self.scanned[index]
        return next(itertools.islice(self.stream.read(found.shard), found.position, None)).content
