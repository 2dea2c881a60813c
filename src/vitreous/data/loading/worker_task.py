"""The task of a loader's worker: read, decode and preprocess items into a shared buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.device import using_threads
from vitreous.core.errors import VitreousError
from vitreous.data.loading.workers import set_current_item, start_context
from vitreous.data.sampling import item_generator
from vitreous.data.shards.virtual_stream import VirtualStream
from vitreous.data.source import Item, Policy, Skipped, Source, Stream
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.parse import Preprocess


@dataclass(frozen=True)
class FillTask:
    """Which items go into one slot of the shared memory: by number, or by their positions in a virtual stream."""

    step: int
    items: list[int]
    epochs: Sequence[int] = ()  # of each item, where they are numbers
    stream: int | None = None
    epoch: int | None = None  # of the stream; None where it is endless
    shuffled: bool = True
    slot: int = 0


@dataclass(frozen=True)
class FilledSlot:
    step: int
    slot: int
    ids: list[str]
    labels: list[tuple[int, ...]]
    bad: list[BadImage]
    skipped: list[Skipped]
    ended: int | None = None  # the stream that has no more items


class SharedBuffer:
    """Pixels that both sides see."""

    def __init__(self, slots: int, shape: tuple[int, ...], eight_bit: bool) -> None:
        self.shape, self.dtype = (slots, *shape), np.dtype(np.uint8 if eight_bit else np.float32)
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        try:
            self._raw = start_context().RawArray(ctypes.c_ubyte, size)
        except (OSError, MemoryError) as error:
            raise VitreousError(
                f"no {size / 1e6:,.0f} MB of shared memory for batches ({error}); use fewer --workers"
            ) from error

    def array(self) -> NDArray[Any]:
        return np.frombuffer(self._raw, self.dtype).reshape(self.shape)


class SlotFiller:
    """A task in, a filled slot out."""

    def __init__(
        self,
        data: Source | Stream,
        preprocess: Preprocess,
        memory: SharedBuffer,
        seed: int,
        streams: int,
        bad_images: Policy,
        quick: bool,
    ) -> None:
        self.data, self.preprocess, self.memory, self.seed = data, preprocess, memory, seed
        self.streams, self.bad_images, self.quick = streams, bad_images, quick
        self._reading: dict[int, VirtualStream] = {}

    def __call__(self, task: FillTask) -> FilledSlot:
        slot = self.memory.array()[task.slot]
        filled = FilledSlot(task.step, task.slot, [], [], [], [])
        reading = None if isinstance(self.data, Source) else self._reading_for(task)
        before = 0 if isinstance(self.data, Source) else len(self.data.skipped)
        # One image is too little to share, and waiting for other threads takes longer than the work.
        with using_threads(1):
            for at in range(len(task.items)):
                try:
                    found = self._read(task, at, reading, filled)
                    if found is None:
                        break
                    self._put(slot, filled, *found)
                except BadImage as error:
                    if self.bad_images == "stop":
                        raise
                    filled.bad.append(error)
        if isinstance(self.data, Source) or reading is None:
            return filled
        filled.skipped.extend(self.data.skipped[before:])
        return replace(filled, ended=task.stream if reading.ended else None)

    def _read(self, task: FillTask, at: int, reading: VirtualStream | None, filled: FilledSlot) -> tuple[Item, int] | None:
        """An item of the task and its epoch; None after the end of a stream."""
        if isinstance(self.data, Source):
            set_current_item(self.data.place(task.items[at]))
            return self.data[task.items[at]], task.epochs[at]
        assert reading is not None
        set_current_item(f"{self.data.where}: what follows {filled.ids[-1]}" if filled.ids else self.data.where)
        found = reading.at(task.items[at])
        if found is not None:
            set_current_item(found[0].place)
        return found

    def _put(self, slot: NDArray[Any], filled: FilledSlot, item: Item, epoch: int) -> None:
        rng = item_generator(self.seed, epoch, item.id) if self.preprocess.random else None
        try:
            image = self.preprocess.transform(item.content, rng, item.place, quick=self.quick)
            self.preprocess.write_pixels(slot[len(filled.ids)], image)
        except BadImage:
            raise
        except VitreousError as error:
            raise VitreousError(f"{item.place}: {error}") from error
        filled.ids.append(item.id)
        filled.labels.append(item.labels)

    def _reading_for(self, task: FillTask) -> VirtualStream:
        """The stream as the last task left it, or from its beginning where that task was not the one before this."""
        assert isinstance(self.data, Stream)
        assert task.stream is not None
        reading = self._reading.get(task.stream)
        if reading is None or reading.epoch != task.epoch or (reading.position > task.items[0] and not reading.ended):
            reading = VirtualStream(self.data, task.stream, self.streams, self.seed, task.epoch, task.shuffled)
            self._reading[task.stream] = reading
        return reading
