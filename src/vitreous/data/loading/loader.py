"""Batches of items that worker processes read, decode and preprocess, in an order that depends on the seed alone.

    Loader(source, "inception_crop(224)|flip|range(-1,1)", 512, seed=0, workers=2).training(start=1000)
    Loader(source, "resize(224)|range(-1,1)", 512).once()

`training` is endless and begins at any step; `once` gives every item once, the last batch as small as it comes. A worker
writes 8-bit pixels into shared memory, and this process scales them on their way into the batch: nothing large is sent.

A stream of shards is read as a fixed number of virtual streams: example n of a run comes from stream n mod `streams`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.data.bad_images import format_bad_image
from vitreous.data.loading.worker_task import FillTask, SharedBuffer, SlotFiller
from vitreous.data.loading.workers import default_workers, run_in_order
from vitreous.data.sampling import Sampling, balanced_items, example_items
from vitreous.data.shards.virtual_stream import RoundRobin, stream_lengths
from vitreous.data.source import Policy, Skipped, Source, Stream
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.ops import Normalise
from vitreous.data.transforms.parse import Preprocess

STREAMS = 32  # virtual streams that shards are read as: the order of training depends on it
_CHUNK = 16  # items per task: small enough to spread a batch over the workers, large enough to cost nothing
_AHEAD = 4  # tasks begun per worker: what is ready while the model takes its step


@dataclass(frozen=True)
class Batch:
    images: Tensor  # (B, C, H, W)
    labels: tuple[tuple[int, ...], ...]
    ids: tuple[str, ...]
    step: int  # of training; the number of the batch otherwise

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def targets(self) -> Tensor:
        """The first label of each, -1 where there is none."""
        return torch.tensor([labels[0] if labels else -1 for labels in self.labels])


class Loader:
    def __init__(
        self,
        data: Source | Stream,
        preprocess: Preprocess | str,
        batch_size: int,
        *,
        seed: int = 0,
        workers: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        streams: int = STREAMS,
        bad_images: Policy = "stop",
        bad_log: Path | None = None,
        quick: bool | None = None,
        sampling: Sampling = "uniform",
    ) -> None:
        """Batches of `batch_size` over all `world_size` processes, of which this is `rank`.

        `bad_images` "stop" raises at the first image that cannot be read; "skip" leaves it out of its batch, keeps it in
        `bad` and writes it to `bad_log`. `quick` allows the decoding of `image.JPEG`, which may differ by a shade from
        the exact one; by default, strings for training do and others do not. `sampling` is for training: see `balanced_items`.
        """
        self.preprocess = Preprocess(preprocess) if isinstance(preprocess, str) else preprocess
        if self.preprocess.size is None:
            raise VitreousError(f"preprocessing {str(self.preprocess)!r} leaves images of different sizes; end it with a crop")
        for op in self.preprocess.scales:
            if isinstance(op, Normalise) and len(op.mean) != self.preprocess.channels:
                raise VitreousError(f"{op} is for {len(op.mean)} channels, the images have {self.preprocess.channels}")
        if batch_size < 1 or batch_size % world_size:
            raise VitreousError(f"--batch-size {batch_size} cannot be divided among {world_size} processes; choose a multiple")
        self.data, self.seed, self.rank, self.world_size = data, seed, rank, world_size
        self.local_batch = batch_size // world_size
        self.workers = default_workers() if workers is None else workers
        self.streams = min(streams, len(data.shards)) if isinstance(data, Stream) else 0
        self.bad_images, self.bad_log = bad_images, bad_log
        self.bad: dict[str, BadImage] = {}  # by place: what was left out
        self._written = set(bad_log.read_text().splitlines(keepends=True)) if bad_log and bad_log.exists() else set()
        self.skipped: list[Skipped] = []
        self.quick = self.preprocess.random if quick is None else quick
        self._targets: NDArray[np.int64] | None = None  # of every item, where classes are drawn equally often
        if sampling == "balanced":
            if not isinstance(data, Source) or data.counts().sum() > len(data):
                raise VitreousError(
                    f"{data.where}: sampling=balanced needs one label for each image, in files; use pos_weight=balanced where "
                    f"images have several, and sampling=uniform for shards"
                )
            self._targets = data.targets()

    # Which items -------------------------------------------------------------------------------------------------------

    def training(self, start: int = 0) -> Iterator[Batch]:
        """Batch after batch without end, from step `start`."""
        lengths = [len(self.data)] if isinstance(self.data, Source) else stream_lengths(self.data, self.streams)
        if lengths is not None and not sum(lengths):
            raise VitreousError(f"{self.data.where}: there are no images to train on")
        if isinstance(self.data, Source):
            of_step: Callable[[int], Iterator[FillTask]] = self._numbered
        elif lengths is not None:
            of_step = partial(self._counted, RoundRobin(lengths))
        else:
            of_step = self._uncounted
        tasks = itertools.chain.from_iterable(map(of_step, itertools.count(start)))
        return self._batches(tasks, start, None)

    def _local_examples(self, step: int) -> NDArray[np.int64]:
        """This rank's examples of a step: every `world_size`-th of the whole batch."""
        batch = self.local_batch * self.world_size
        return np.arange(step * batch + self.rank, (step + 1) * batch, self.world_size)

    def _items(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """This rank's items of a step, and their epochs."""
        assert isinstance(self.data, Source)
        if self._targets is not None:
            return balanced_items(self._local_examples(step), self._targets, self.seed)
        return example_items(self._local_examples(step), len(self.data), self.seed)

    def _numbered(self, step: int) -> Iterator[FillTask]:
        items, epochs = self._items(step)
        for part in _chunks(len(items)):
            yield FillTask(step, items[part].tolist(), epochs[part].tolist())

    def _counted(self, turns: RoundRobin, step: int) -> Iterator[FillTask]:
        """Of a stream: example n of the run is example n mod total of its epoch, which some stream gives in its turn."""
        examples = self._local_examples(step)
        epochs = examples // turns.total
        for epoch in np.unique(epochs).tolist():
            yield from _stream_tasks(step, *turns(examples[epochs == epoch] % turns.total), epoch)

    def _uncounted(self, step: int) -> Iterator[FillTask]:
        """Where the shards' lengths are unknown, streams take turns without end; the shorter ones start over more often."""
        if self.streams % self.world_size:
            raise VitreousError(
                f"{self.data.where}: shards of unknown length, as {self.streams} streams, cannot be divided among "
                f"{self.world_size} processes; write an index.json with `vitreous shard`, or use a number that divides them"
            )
        examples = self._local_examples(step)
        return _stream_tasks(step, examples % self.streams, examples // self.streams, None)

    def once(self) -> Iterator[Batch]:
        """Every item once, in the order of the source; of a stream, its virtual streams taking turns."""
        finished: set[int] = set()
        return self._batches(self._all(finished), 0, finished)

    def _all(self, finished: set[int]) -> Iterator[FillTask]:
        if isinstance(self.data, Source):
            numbers = range(self.rank, len(self.data), self.world_size)
            for part in _chunks(len(numbers)):
                yield FillTask(0, list(numbers[part]), [0] * len(numbers[part]))
            return
        streams = range(self.rank, self.streams, self.world_size)
        for position in itertools.count(0, _CHUNK):
            for stream in streams:
                if stream not in finished:
                    yield FillTask(0, list(range(position, position + _CHUNK)), stream=stream, shuffled=False)
            if finished.issuperset(streams):
                return

    # From tasks to batches ---------------------------------------------------------------------------------------------

    def _batches(self, tasks: Iterator[FillTask], start: int, finished: set[int] | None) -> Iterator[Batch]:
        """`finished`, which streams have come to their end, is given where batches are cut by count and not by step."""
        height, width = self.preprocess.size or (0, 0)
        shape = (_CHUNK, self.preprocess.channels, height, width)
        slots = max(1, self.workers) * (_AHEAD + 1)
        memory = SharedBuffer(slots, shape, eight_bit=self.preprocess.eight_bit)
        fill = SlotFiller(self.data, self.preprocess, memory, self.seed, self.streams, self.bad_images, self.quick)
        numbered = (replace(task, slot=number % slots) for number, task in enumerate(tasks))
        results = run_in_order(fill, numbered, self.workers, ahead=_AHEAD, owner=self._owner if self.streams else None)
        made = _BatchBuilder(self.local_batch, (self.preprocess.channels, height, width))
        step, unread = start, 0
        most = len(self.data) if isinstance(self.data, Source) else 1000
        for result in results:
            if finished is None:
                while step < result.step:  # the batch is smaller by what could not be read; it may be empty
                    yield made.batch(step)
                    step += 1
                unread = 0 if result.ids else unread + max(1, len(result.bad))
                if unread >= most:
                    last = f"; the last: {result.bad[-1]}" if result.bad else "; see `vitreous doctor`"
                    raise VitreousError(f"{self.data.where}: none of the last {unread:,} images could be read{last}")
            elif result.ended is not None:
                finished.add(result.ended)
            self._note(result.bad)
            self.skipped += [entry for entry in result.skipped if entry not in self.skipped]
            pixels = memory.array()[result.slot]
            at = 0
            while at < len(result.ids):
                at += made.take(self.preprocess, pixels[at:], result.ids[at:], result.labels[at:])
                if len(made) == self.local_batch:
                    yield made.batch(step)
                    step += 1
        if len(made):
            yield made.batch(step)

    def _owner(self, task: FillTask) -> int:
        return (task.stream or 0) // self.world_size  # neighbouring streams of this process go to different workers

    def _note(self, bad: list[BadImage]) -> None:
        for error in bad:
            if error.place in self.bad:
                continue
            self.bad[error.place] = error
            if self.bad_log is not None and format_bad_image(error) not in self._written:
                self.bad_log.parent.mkdir(parents=True, exist_ok=True)
                with self.bad_log.open("a", encoding="ascii") as file:
                    file.write(format_bad_image(error))


def _chunks(count: int) -> Iterator[slice]:
    return (slice(at, at + _CHUNK) for at in range(0, count, _CHUNK))


def _stream_tasks(step: int, streams: NDArray[np.int64], positions: NDArray[np.int64], epoch: int | None) -> Iterator[FillTask]:
    """Tasks for these positions of these virtual streams."""
    for stream in np.unique(streams).tolist():
        own = positions[streams == stream].tolist()
        for part in _chunks(len(own)):
            yield FillTask(step, own[part], stream=stream, epoch=epoch)


class _BatchBuilder:
    """The batch that is being filled."""

    def __init__(self, size: int, shape: tuple[int, int, int]) -> None:
        self._shape = (size, *shape)
        self._begin()

    def _begin(self) -> None:
        self._images = torch.empty(self._shape)
        self._ids: list[str] = []
        self._labels: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, preprocess: Preprocess, pixels: NDArray[Any], ids: list[str], labels: list[tuple[int, ...]]) -> int:
        """As many of these as there is room for; returns how many that was."""
        images, count = self._images.numpy()[len(self) :], min(len(ids), len(self._images) - len(self))
        for row in range(count):
            preprocess.scale_into(images[row], pixels[row])
        self._ids += ids[:count]
        self._labels += labels[:count]
        return count

    def batch(self, step: int) -> Batch:
        made = Batch(self._images[: len(self)], tuple(self._labels), tuple(self._ids), step)
        self._begin()
        return made
