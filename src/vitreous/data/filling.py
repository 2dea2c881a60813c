"""What the loader's workers do: items read, decoded and preprocessed into memory that the loader sees too."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.decode import BadImage
from vitreous.data.order import generator
from vitreous.data.pictures import to_bytes, to_tensor
from vitreous.data.preprocess import Preprocess
from vitreous.data.source import Item, Skipped, Source, Stream
from vitreous.data.virtual_stream import VirtualStream
from vitreous.data.workers import context, working_on
from vitreous.errors import VitreousError

BadImages: TypeAlias = Literal["stop", "skip"]


@dataclass(frozen=True)
class Task:
    """Items by number, or the next `count` of a stream, into one slot of the shared memory."""

    step: int
    items: list[int] | None = None
    epochs: list[int] | None = None
    stream: int | None = None
    position: int = 0
    count: int = 0
    endless: bool = True
    slot: int = 0


@dataclass(frozen=True)
class Filled:
    step: int
    slot: int
    ids: list[str]
    labels: list[tuple[int, ...]]
    bad: list[BadImage]
    skipped: list[Skipped]
    ended: int | None = None  # the stream that has no more items


class Memory:
    """Pixels that both sides see."""

    def __init__(self, slots: int, shape: tuple[int, ...], eight_bit: bool) -> None:
        self.shape, self.dtype = (slots, *shape), np.dtype(np.uint8 if eight_bit else np.float32)
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        try:
            self._raw = context().RawArray(ctypes.c_ubyte, size)
        except (OSError, MemoryError) as error:
            raise VitreousError(
                f"no {size / 1e6:,.0f} MB of shared memory for batches ({error}); use fewer --workers"
            ) from error

    def array(self) -> NDArray[Any]:
        return np.frombuffer(self._raw, self.dtype).reshape(self.shape)


class Fill:
    """A task in, a filled slot out."""

    def __init__(
        self,
        data: Source | Stream,
        preprocess: Preprocess,
        memory: Memory,
        seed: int,
        streams: int,
        bad_images: BadImages,
        quick: bool,
    ) -> None:
        self.data, self.preprocess, self.memory, self.seed = data, preprocess, memory, seed
        self.streams, self.bad_images, self.quick = streams, bad_images, quick
        self._reading: dict[int, VirtualStream] = {}

    def __call__(self, task: Task) -> Filled:
        threads = torch.get_num_threads()
        try:  # one picture is too little to share, and waiting for other threads takes longer than the work
            torch.set_num_threads(1)
            return self._filled(task)
        finally:
            torch.set_num_threads(threads)

    def _filled(self, task: Task) -> Filled:
        slot = self.memory.array()[task.slot]
        filled = Filled(task.step, task.slot, [], [], [], [])
        if task.stream is None:
            assert isinstance(self.data, Source)
            for number, epoch in zip(task.items or (), task.epochs or (), strict=True):
                working_on(self.data.place(number))
                try:
                    self._put(slot, filled, self.data[number], epoch)
                except BadImage as error:
                    self._bad(filled, error)
            return filled
        assert isinstance(self.data, Stream)
        before = len(self.data.skipped)
        reading = self._at(task.stream, task.position, task.endless)
        for item, epoch in itertools.islice(reading, task.count):
            working_on(item.place)
            try:
                self._put(slot, filled, item, epoch)
            except BadImage as error:
                self._bad(filled, error)
        filled.skipped.extend(self.data.skipped[before:])
        ended = task.stream if reading.position < task.position + task.count else None
        return replace(filled, ended=ended)

    def _put(self, slot: NDArray[Any], filled: Filled, item: Item, epoch: int) -> None:
        rng = generator(self.seed, epoch, item.id) if self.preprocess.random else None
        content = item.content
        try:
            picture = self.preprocess.picture(content, rng, item.place, quick=self.quick)
            row = len(filled.ids)
            if self.preprocess.eight_bit:
                slot[row] = to_bytes(picture).transpose(2, 0, 1)
            else:
                slot[row] = to_tensor(picture).numpy()
        except BadImage:
            raise
        except VitreousError as error:
            raise VitreousError(f"{item.place}: {error}") from error
        filled.ids.append(item.id)
        filled.labels.append(item.labels)

    def _bad(self, filled: Filled, error: BadImage) -> None:
        if self.bad_images == "stop":
            raise error
        filled.bad.append(error)

    def _at(self, stream: int, position: int, endless: bool) -> VirtualStream:
        """The stream, at that position: as the last task left it, or read up to there."""
        reading = self._reading.get(stream)
        if reading is None or reading.position != position:
            assert isinstance(self.data, Stream)
            reading = self._reading[stream] = VirtualStream(self.data, stream, self.streams, self.seed, endless, position)
        return reading
