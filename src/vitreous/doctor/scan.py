"""Scan a data set: read every item once, in parallel, and keep what was found in arrays.

Items are numbered through, split after split, in the order in which they were read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.bad_images import read_or_refuse
from vitreous.data.loading.workers import WorkerDied, run_in_order, set_current_item
from vitreous.data.source import Content, Dataset, Source, Stream
from vitreous.data.transforms.decode import BadImage
from vitreous.doctor.examine import Examination, examine
from vitreous.doctor.fingerprint import Fingerprints
from vitreous.doctor.records import Row, Rows, Table, make_row, pack_rows
from vitreous.doctor.stream_index import ScannedItem, ScannedStream

CHUNK = 64  # items per task: large enough that sending them costs nothing, small enough that the progress moves
CRASHES = 20  # files that may kill a decoder's process; more mean that the machine is at fault


@dataclass(frozen=True, eq=False)
class Scan:
    dataset: Dataset
    splits: tuple[str, ...]
    starts: NDArray[np.int64]  # where each split begins, and the end of the last
    records: NDArray[Any]  # of `records.RECORD`
    prints: Fingerprints | None
    texts: dict[int, str]  # what is wrong with an item, or odd about it
    sources: dict[str, Source]  # the splits; a stream by what was read of it
    broken: tuple[tuple[str, str], ...] = ()  # split and reason: shards that could not be read to their end

    def __len__(self) -> int:
        return len(self.records)

    def where(self, item: int) -> tuple[str, int]:
        """The item's split and its number there."""
        number = int(np.searchsorted(self.starts, item, side="right")) - 1
        return self.splits[number], item - int(self.starts[number])

    def _find(self, item: int) -> tuple[Source, int]:
        split, index = self.where(item)
        return self.sources[split], index

    def id(self, item: int) -> str:
        source, index = self._find(item)
        return source.id(index)

    def label_names(self, item: int) -> tuple[str, ...]:
        source, index = self._find(item)
        return tuple(self.dataset.classes[label] for label in source.labels(index) if label >= 0)

    def path(self, item: int) -> str | None:
        source, index = self._find(item)
        return source.path(index)

    def read(self, item: int) -> Content:
        """The item's content once more."""
        source, index = self._find(item)
        return source.read(index)

    def part(self, split: str) -> slice:
        number = self.splits.index(split)
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def usable(self) -> NDArray[np.bool_]:
        """Which items were decoded; a damaged image is one."""
        return np.asarray(self.records["width"] > 0)

    def unlabelled(self, split: str) -> NDArray[np.int64]:
        return np.flatnonzero(self.sources[split].targets() < 0) + self.part(split).start


def scan_dataset(
    dataset: Dataset, *, workers: int = 0, near: bool = True, advance: Callable[[int], None] = lambda more: None
) -> Scan:
    """Read and examine everything. `advance` is called with how many more items are done."""
    splits = tuple(dataset.splits)
    sources = tuple(dataset.splits[split] for split in splits)
    table = Table(near)
    streamed: dict[str, list[ScannedItem]] = defaultdict(list)
    starts, broken = np.zeros(len(splits) + 1, np.int64), []
    tasks = [_Task(number, *part) for number, source in enumerate(sources) for part in divide(source, CHUNK)]
    for task, batch in _batches(_Examiner(sources, near), tasks, workers):
        table.add(batch.rows)
        starts[task.split + 1 :] += len(batch.rows)
        streamed[splits[task.split]] += batch.streamed
        if batch.broken:
            broken.append((splits[task.split], batch.broken))
        advance(len(batch.rows))
    scanned = {
        split: ScannedStream(source, streamed[split]) if isinstance(source, Stream) else source
        for split, source in dataset.splits.items()
    }
    rows = table.finished()
    return Scan(dataset, splits, starts, rows.records, rows.prints, rows.texts, scanned, tuple(broken))


# Tasks ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    split: int
    start: int  # items of a source, or the shard of a stream
    stop: int


@dataclass(frozen=True, eq=False)
class _Batch:
    rows: Rows
    streamed: Sequence[ScannedItem] = ()  # the items of a shard
    broken: str = ""


def divide(source: Source | Stream, chunk: int) -> list[tuple[int, int]]:
    """First and last (exclusive) of the items that one task reads; of a stream, of its shards."""
    total, step = (len(source.shards), 1) if isinstance(source, Stream) else (len(source), chunk)
    return [(start, min(start + step, total)) for start in range(0, total, step)]


def _batches(examiner: _Examiner, tasks: Sequence[_Task], workers: int) -> Iterator[tuple[_Task, _Batch]]:
    """Results in order. A file that crashes its process is a finding like any other: it is set aside and the scan continues."""
    done = 0
    while done < len(tasks):
        try:
            for batch in run_in_order(examiner, tasks[done:], workers):
                done += 1
                yield tasks[done - 1], batch
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
    deadly: frozenset[str] = frozenset()  # files, members and shards that a process died of

    def __call__(self, task: _Task) -> _Batch:
        source = self.sources[task.split]
        if isinstance(source, Source):
            found = (self._of_source(source, index) for index in range(task.start, task.stop))
            return _Batch(pack_rows([make_row(one, self.near) for one in found], self.near))
        return self._of_shard(source, task.start)

    def _of_source(self, source: Source, index: int) -> Examination:
        place = source.place(index)
        set_current_item(place)  # before it is read: a process may die of that, too
        if place in self.deadly:
            return _CRASHED
        content = read_or_refuse(source, index)
        if isinstance(content, BadImage):
            return Examination(problem=content.kind, why=content.why)
        return examine(content, source.id(index))

    def _of_shard(self, source: Stream, number: int) -> _Batch:
        shard, broken = source.shards[number], ""
        rows: list[Row] = []
        streamed: list[ScannedItem] = []
        items = iter(()) if shard in self.deadly else source.read(number)
        before = len(source.skipped)
        try:
            set_current_item(shard)  # until its next member is read, its name is unknown
            for item in items:
                set_current_item(item.place)
                found = _CRASHED if item.place in self.deadly else examine(item.content, item.id)
                rows.append(make_row(found, self.near))
                labels = tuple(label for label in item.labels if label >= 0)
                streamed.append(ScannedItem(item.id, labels, number, len(streamed)))
                set_current_item(shard)
        except VitreousError as error:
            broken = str(error)
        if len(source.skipped) > before:  # it was opened so that a broken shard is passed over, which is a finding here
            entry = source.skipped[before]
            broken = f"{entry.shard}: {entry.reason}; fetch or make this shard again, or leave it out"
        if shard in self.deadly:
            broken = f"{shard}: the process that read it crashed; fetch or write it again"
        return _Batch(pack_rows(rows, self.near), streamed, broken)


_CRASHED = Examination(problem="unreadable", why="the decoder crashed on it; replace it or leave it out")
