"""The one pass over a data set: every item read once, in parallel, and what was seen kept in arrays.

An item takes about 90 bytes and, where near duplicates are wanted, its fingerprint; there is no Python object per item, so
a million images are no burden. Items are numbered through, split after split, in the order in which they were read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.decode import BadImage
from vitreous.data.source import Content, Dataset, Source, Stream
from vitreous.data.workers import WorkerDied, run_in_order, working_on
from vitreous.errors import VitreousError
from vitreous.hygiene.examine import Examination, examine
from vitreous.hygiene.fingerprint import LENGTH, fingerprint

RECORD = np.dtype(
    [
        ("digest", "<u8", 2),
        ("problem", "S16"),
        ("odd", "?"),
        ("misnamed", "?"),
        ("format", "S10"),
        ("mode", "S8"),
        ("width", "<u4"),
        ("height", "<u4"),
        ("orientation", "u1"),
        ("frames", "<u2"),
        ("mean", "<f4", 3),
        ("deviation", "<f4", 3),
    ]
)
CHUNK = 64  # items per task: large enough that sending them costs nothing, small enough that the progress moves
CRASHES = 20  # files that may kill a decoder's process; more mean that the machine is at fault


@dataclass(frozen=True, eq=False)
class Names:
    """The ids, labels and shards of streamed items, which cannot be asked for again without reading everything."""

    text: bytes
    ends: NDArray[np.int64]
    labels: NDArray[np.int32]
    label_ends: NDArray[np.int64]
    shard: NDArray[np.int32]
    position: NDArray[np.int32]

    def id(self, index: int) -> str:
        start = int(self.ends[index - 1]) if index else 0
        return self.text[start : int(self.ends[index])].decode(errors="surrogateescape")

    def labels_of(self, index: int) -> tuple[int, ...]:
        start = int(self.label_ends[index - 1]) if index else 0
        return tuple(self.labels[start : int(self.label_ends[index])].tolist())


@dataclass(frozen=True, eq=False)
class Scan:
    dataset: Dataset
    splits: tuple[str, ...]
    starts: NDArray[np.int64]  # where each split begins, and the end of the last
    records: NDArray[Any]  # RECORD
    prints: NDArray[np.uint8] | None
    texts: dict[int, str]  # what is wrong with an item, or odd about it
    names: dict[str, Names]  # of the splits that are streams
    broken: tuple[tuple[str, str], ...] = ()  # split and reason: shards that could not be read to their end

    def __len__(self) -> int:
        return len(self.records)

    def where(self, item: int) -> tuple[str, int]:
        """The item's split and its number there."""
        number = int(np.searchsorted(self.starts, item, side="right")) - 1
        return self.splits[number], item - int(self.starts[number])

    def id(self, item: int) -> str:
        split, index = self.where(item)
        source = self.dataset.splits[split]
        return source.id(index) if isinstance(source, Source) else self.names[split].id(index)

    def labels(self, item: int) -> tuple[int, ...]:
        split, index = self.where(item)
        source = self.dataset.splits[split]
        labels = source.labels(index) if isinstance(source, Source) else self.names[split].labels_of(index)
        return tuple(label for label in labels if label >= 0)

    def label_names(self, item: int) -> tuple[str, ...]:
        return tuple(self.dataset.classes[label] for label in self.labels(item))

    def path(self, item: int) -> str | None:
        split, index = self.where(item)
        source = self.dataset.splits[split]
        return source.path(index) if isinstance(source, Source) else None

    def part(self, split: str) -> slice:
        number = self.splits.index(split)
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def usable(self) -> NDArray[np.bool_]:
        """Which items were decoded; a damaged picture is one."""
        return np.asarray(self.records["width"] > 0)

    def class_counts(self, split: str) -> NDArray[np.int64]:
        source = self.dataset.splits[split]
        if isinstance(source, Source):
            return source.counts()
        labels = self.names[split].labels
        return np.bincount(labels[labels >= 0], minlength=len(self.dataset.classes)).astype(np.int64)

    def unlabelled(self, split: str) -> NDArray[np.int64]:
        source = self.dataset.splits[split]
        known = source.targets() >= 0 if isinstance(source, Source) else np.diff(self.names[split].label_ends, prepend=0) > 0
        return np.flatnonzero(~known) + self.part(split).start

    def read(self, item: int) -> Content:
        """The item's content once more; of a shard, everything before it is read too."""
        split, index = self.where(item)
        source = self.dataset.splits[split]
        if isinstance(source, Source):
            return source.read(index)
        names = self.names[split]
        wanted = source.read(int(names.shard[index]))
        return next(itertools.islice(wanted, int(names.position[index]), None)).content


def scan(dataset: Dataset, *, workers: int = 0, near: bool = True, advance: Callable[[int], None] = lambda more: None) -> Scan:
    """Read and examine everything. `advance` is told how many more items are done."""
    splits = tuple(dataset.splits)
    sources = tuple(dataset.splits[split] for split in splits)
    known = [len(s) if isinstance(s, Source) else s.count() or 0 for s in sources]
    table = _Table(sum(known), near)
    lists: dict[str, list[Names]] = {split: [] for split, s in zip(splits, sources, strict=True) if isinstance(s, Stream)}
    starts, broken = np.zeros(len(splits) + 1, np.int64), []
    for task, batch in _batches(_Examiner(sources, near), _tasks(sources), workers):
        table.add(batch)
        starts[task.split + 1 :] += len(batch.records)
        if batch.names is not None:
            lists[splits[task.split]].append(batch.names)
        if batch.broken:
            broken.append((splits[task.split], batch.broken))
        advance(len(batch.records))
    names = {split: _joined(parts) for split, parts in lists.items()}
    records, prints = table.finished()
    return Scan(dataset, splits, starts, records, prints, table.texts, names, tuple(broken))


def total(dataset: Dataset) -> int | None:
    """How many items there are, if that is known."""
    counts = [len(s) if isinstance(s, Source) else s.count() for s in dataset.splits.values()]
    return None if None in counts else sum(count for count in counts if count is not None)


# Tasks ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    split: int
    start: int  # items of a source, or the shard of a stream
    stop: int


@dataclass(frozen=True, eq=False)
class _Batch:
    records: NDArray[Any]
    prints: NDArray[np.uint8] | None
    texts: dict[int, str]
    names: Names | None = None  # of streamed items
    broken: str = ""


def _tasks(sources: Sequence[Source | Stream]) -> Iterator[_Task]:
    for number, source in enumerate(sources):
        if isinstance(source, Source):
            for start in range(0, len(source), CHUNK):
                yield _Task(number, start, min(start + CHUNK, len(source)))
        else:
            yield from (_Task(number, shard, shard + 1) for shard in range(len(source.shards)))


def _batches(examiner: _Examiner, tasks: Iterator[_Task], workers: int) -> Iterator[tuple[_Task, _Batch]]:
    """Results in order. A file that crashes its process is a finding like any other: it is set aside and the work goes on."""
    waiting = list(tasks)
    done = 0
    while done < len(waiting):
        try:
            for batch in run_in_order(examiner, waiting[done:], workers):
                done += 1
                yield waiting[done - 1], batch
        except WorkerDied as died:
            killed = "SIGKILL" in str(died)  # memory ran out, as a rule; the file need not be to blame
            if killed or not died.item or died.item in examiner.deadly or len(examiner.deadly) >= CRASHES:
                raise
            examiner = _Examiner(examiner.sources, examiner.near, examiner.deadly | {died.item})


@dataclass(frozen=True)
class _Examiner:
    """Examines the items of a task; runs in worker processes."""

    sources: tuple[Source | Stream, ...]
    near: bool
    deadly: frozenset[str] = frozenset()  # places of files that a process died of

    def __call__(self, task: _Task) -> _Batch:
        source = self.sources[task.split]
        if isinstance(source, Source):
            indices = range(task.start, task.stop)
            return self._packed([self._read(source, index) for index in indices])
        rows, ids, labels, broken = [], [], [], ""
        items = source.read(task.start)
        while True:
            try:
                item = next(items, None)
            except VitreousError as error:
                broken = str(error)
                break
            if item is None:
                break
            rows.append(self._row(self._examined(item.content, item.id, item.place)))
            ids.append(item.id)
            labels.append(item.labels)
        return self._packed(rows, _names(ids, labels, task.start), broken)

    def _read(self, source: Source, index: int) -> _Row:
        place, name = source.place(index), source.id(index)
        try:
            content = source.read(index)
        except BadImage as bad:
            return self._row(Examination(problem=bad.kind, why=bad.why))
        except VitreousError as error:
            return self._row(Examination(problem="unreadable", why=str(error).removeprefix(f"{place}: ")))
        return self._row(self._examined(content, name, place))

    def _examined(self, content: Content, name: str, place: str) -> Examination:
        working_on(place)
        if place in self.deadly:
            return Examination(problem="unreadable", why="the decoder crashed on it; replace it or leave it out")
        return examine(content, name)

    def _row(self, found: Examination) -> _Row:
        prints = fingerprint(found.picture) if self.near and found.picture is not None else None
        record = (
            np.frombuffer(found.digest, "<u8"),
            found.problem.encode("ascii", "replace"),
            bool(found.odd),
            found.misnamed,
            found.format.encode("ascii", "replace"),
            found.mode.encode("ascii", "replace"),
            found.width,
            found.height,
            found.orientation,
            min(found.frames, 65535),
            found.mean,
            found.deviation,
        )
        return record, prints, found.why or found.odd

    def _packed(self, rows: Sequence[_Row], names: Names | None = None, broken: str = "") -> _Batch:
        records = np.array([record for record, _, _ in rows], RECORD) if rows else np.zeros(0, RECORD)
        prints = np.zeros((len(rows), LENGTH), np.uint8) if self.near else None
        for number, (_, row, _) in enumerate(rows):
            if prints is not None and row is not None:
                prints[number] = row
        texts = {number: text for number, (_, _, text) in enumerate(rows) if text}
        return _Batch(records, prints, texts, names, broken)


_Row = tuple[tuple[Any, ...], NDArray[np.uint8] | None, str]


# What is kept -----------------------------------------------------------------------------------------------------------------


class _Table:
    """Arrays that grow: to the size foretold at once, and by half of it where nobody knew."""

    def __init__(self, expected: int, near: bool) -> None:
        self._count = 0
        self._records = np.zeros(max(expected, 1), RECORD)
        self._prints = np.zeros((max(expected, 1), LENGTH), np.uint8) if near else None
        self.texts: dict[int, str] = {}

    def add(self, batch: _Batch) -> None:
        end = self._count + len(batch.records)
        if end > len(self._records):
            size = max(end, len(self._records) * 3 // 2)
            self._records = np.resize(self._records, size)
            if self._prints is not None:
                self._prints = np.resize(self._prints, (size, LENGTH))
        self._records[self._count : end] = batch.records
        if self._prints is not None and batch.prints is not None:
            self._prints[self._count : end] = batch.prints
        self.texts.update({self._count + number: text for number, text in batch.texts.items()})
        self._count = end

    def finished(self) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
        prints = self._prints[: self._count] if self._prints is not None else None
        return self._records[: self._count], prints


def _names(ids: Sequence[str], labels: Sequence[tuple[int, ...]], shard: int) -> Names:
    encoded = [name.encode(errors="surrogateescape") for name in ids]
    return Names(
        b"".join(encoded),
        np.cumsum([len(name) for name in encoded], dtype=np.int64),
        np.fromiter(itertools.chain.from_iterable(labels), np.int32),
        np.cumsum([len(several) for several in labels], dtype=np.int64),
        np.full(len(encoded), shard, np.int32),
        np.arange(len(encoded), dtype=np.int32),
    )


def _joined(parts: Sequence[Names]) -> Names:
    parts = [*parts, _names((), (), 0)]
    texts = np.cumsum([0, *(len(part.text) for part in parts)])
    labels = np.cumsum([0, *(len(part.labels) for part in parts)])
    return Names(
        b"".join(part.text for part in parts),
        np.concatenate([part.ends + before for part, before in zip(parts, texts, strict=False)]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.label_ends + before for part, before in zip(parts, labels, strict=False)]),
        np.concatenate([part.shard for part in parts]),
        np.concatenate([part.position for part in parts]),
    )
