"""A compact index of streamed items, by which a stream that was read once is a source like any other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.data.source import Content, Source, Stream


@dataclass(frozen=True, eq=False)
class StreamIndex:
    """Ids and labels one behind the other, with the end of each item's own; and where the items are."""

    text: bytes
    ends: NDArray[np.int64]
    labels: NDArray[np.int32]
    label_ends: NDArray[np.int64]
    shard: NDArray[np.int32]
    position: NDArray[np.int32]


class ScannedStream(Source):
    """The items of a stream by number. To read one again, everything before it in its shard is read too."""

    def __init__(self, stream: Stream, index: StreamIndex) -> None:
        self.where, self.split, self.classes = stream.where, stream.split, stream.classes
        self.stream, self.index = stream, index

    def __len__(self) -> int:
        return len(self.index.ends)

    def id(self, index: int) -> str:
        start = int(self.index.ends[index - 1]) if index else 0
        return self.index.text[start : int(self.index.ends[index])].decode(errors="surrogateescape")

    def labels(self, index: int) -> tuple[int, ...]:
        start = int(self.index.label_ends[index - 1]) if index else 0
        return tuple(self.index.labels[start : int(self.index.label_ends[index])].tolist())

    def read(self, index: int) -> Content:
        shard = self.stream.read(int(self.index.shard[index]))
        return next(itertools.islice(shard, int(self.index.position[index]), None)).content


def read_shard_index(ids: Sequence[str], labels: Sequence[tuple[int, ...]], shard: int) -> StreamIndex:
    encoded = [name.encode(errors="surrogateescape") for name in ids]
    return StreamIndex(
        b"".join(encoded),
        np.cumsum([len(name) for name in encoded], dtype=np.int64),
        np.fromiter(itertools.chain.from_iterable(labels), np.int32),
        np.cumsum([len(several) for several in labels], dtype=np.int64),
        np.full(len(encoded), shard, np.int32),
        np.arange(len(encoded), dtype=np.int32),
    )


def join_indexes(parts: Sequence[StreamIndex]) -> StreamIndex:
    parts = [*parts, read_shard_index((), (), 0)]
    texts = np.cumsum([0, *(len(part.text) for part in parts)])
    labels = np.cumsum([0, *(len(part.labels) for part in parts)])
    return StreamIndex(
        b"".join(part.text for part in parts),
        np.concatenate([part.ends + before for part, before in zip(parts, texts, strict=False)]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.label_ends + before for part, before in zip(parts, labels, strict=False)]),
        np.concatenate([part.shard for part in parts]),
        np.concatenate([part.position for part in parts]),
    )
