"""Images of any kind as preprocessed batches: those in memory at once, those of a long list in worker processes.

Unlike a data set's loader, `decode_images` does not know how many images there are, and an image that cannot be read keeps
its place in the order. Not even an image that kills its decoder ends the run: the others are decoded in new processes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.core.device import using_threads
from vitreous.core.errors import VitreousError
from vitreous.data.loading.worker_task import SharedBuffer
from vitreous.data.loading.workers import WorkerDied, run_in_order, set_current_item
from vitreous.data.transforms.decode import BadImage, ImageLike
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference.image_list import NamedImage

Images = ImageLike | Sequence[ImageLike] | Tensor

CHUNK = 16  # images per task: enough to cost nothing, few enough to spread over the workers
AHEAD = 2  # tasks begun per worker


# In memory -------------------------------------------------------------------------------------------------------------


def is_single(images: Images) -> bool:
    """Whether this is one image, not a sequence of them."""
    if isinstance(images, np.ndarray):
        return images.ndim in (2, 3)
    return isinstance(images, (str, Path, Image.Image))


def as_sequence(images: Images) -> Any:
    """Something with a length that can be sliced: a tensor or an array of images, or a list."""
    if isinstance(images, Tensor):
        if images.ndim != 4 or not (images.is_floating_point() or images.dtype == torch.uint8):
            shape = tuple(images.shape)
            raise VitreousError(f"tensor of {images.dtype} with shape {shape}: expected (B, C, H, W), float or uint8")
        listed: Any = images
    elif isinstance(images, np.ndarray) and images.ndim == 4:
        listed = images
    elif is_single(images):
        listed = [images]
    else:
        try:
            listed = list(cast(Iterable[Any], images))
        except TypeError:
            raise VitreousError(f"expected images, not {type(images).__name__}") from None
    if not len(listed):
        raise VitreousError("no images given")
    return listed


def preprocess_batch(preprocess: Preprocess, images: Images) -> Tensor:
    """Images of any kind as one batch (B, C, H, W); a float tensor counts as preprocessed already."""
    items = as_sequence(images)
    if isinstance(items, Tensor):
        if items.is_floating_point():
            return items
        items = items.permute(0, 2, 3, 1).numpy()
    return torch.stack([preprocess(item) for item in items])


def iterate_batches(preprocess: Preprocess, images: Images, batch_size: int) -> Iterator[Tensor]:
    """Images of any kind as batches: only one of them is in memory."""
    if batch_size < 1:
        raise VitreousError(f"batch_size {batch_size} must be at least 1")
    items = as_sequence(images)
    return (preprocess_batch(preprocess, items[i : i + batch_size]) for i in range(0, len(items), batch_size))


# In worker processes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecodeTask:
    number: int  # of its first image
    images: tuple[NamedImage, ...]
    slot: int = 0


class DecodedTask(NamedTuple):
    slot: int
    errors: tuple[str | None, ...]  # of each image; None: its pixels are in the slot, at its place in the task


class DecodedImages(NamedTuple):
    """Images in their order: those without an error are the rows of `pixels`, in the same order."""

    paths: tuple[str, ...]
    errors: tuple[str | None, ...]
    pixels: Tensor  # (B, C, H, W), ready for the model


class _Decoder:
    """A task in, a filled slot out."""

    def __init__(self, preprocess: Preprocess, memory: SharedBuffer) -> None:
        self.preprocess, self.memory = preprocess, memory

    def __call__(self, task: DecodeTask) -> DecodedTask:
        slot = self.memory.array()[task.slot]
        # One image is too little to share.
        with using_threads(1):
            errors = (self._decode(slot[row], task.number + row, image) for row, image in enumerate(task.images))
            return DecodedTask(task.slot, tuple(errors))

    def _decode(self, out: NDArray[Any], number: int, image: NamedImage) -> str | None:
        """What is wrong with the image, if it could not be written."""
        if image.error is not None:
            return image.error
        set_current_item(str(number))
        try:
            content = image.path if image.content is None else image.content
            self.preprocess.write_pixels(out, self.preprocess.transform(content, place=image.path))
        except BadImage as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.strerror and error.kind == "unreadable":  # it may not be opened
                return f"cannot be read ({cause.strerror})"
            return error.why
        except VitreousError as error:  # too small for a crop, for one
            return str(error).removeprefix(f"{image.path}: ")
        except MemoryError:
            return "not enough memory to decode it; make it smaller, or use fewer --workers"
        except (ValueError, OSError) as error:  # of the name itself, as one that holds NUL
            return f"cannot be read ({error})"
        return None


def check_fixed_size(preprocess: Preprocess) -> None:
    if preprocess.size is None:
        raise VitreousError(f"preprocessing {str(preprocess)!r} leaves images of different sizes; end it with a crop")
    if preprocess.random:
        raise VitreousError(f"preprocessing {str(preprocess)!r} is random, which is for training")


def decode_images(images: Iterator[NamedImage], preprocess: Preprocess, workers: int) -> Iterator[DecodedImages]:
    """Every image, a few at a time. At most AHEAD tasks per worker are drawn from `images` before they are needed."""
    check_fixed_size(preprocess)
    height, width = preprocess.size or (0, 0)
    images = iter(images)
    first = list(itertools.islice(images, CHUNK + 1))
    if len(first) <= CHUNK:  # starting processes would take longer than the work
        workers = 0
    slots = max(1, workers) * (AHEAD + 1)
    memory = SharedBuffer(slots, (CHUNK, preprocess.channels, height, width), eight_bit=preprocess.eight_bit)
    tasks = _tasks(itertools.chain(first, images))
    sent: deque[DecodeTask] = deque()
    suspected: set[int] = set()
    deadly: dict[int, str] = {}
    while True:
        again, sent = sent, deque()
        numbered = _in_slots(itertools.chain(again, tasks), slots, sent, deadly)
        try:
            for done in run_in_order(_Decoder(preprocess, memory), numbered, workers, ahead=AHEAD):
                yield _collect(preprocess, memory, sent.popleft(), done)
            return
        except WorkerDied as error:
            known = {task.number + row for task in sent for row in range(len(task.images))} - deadly.keys()
            if not error.item.isdigit() or int(error.item) not in known:
                raise VitreousError(
                    f"a process that decodes images {str(error).partition(' died ')[2]}; start again"
                ) from error
            number = int(error.item)
            if number in suspected:  # once may be chance: a system that is short of memory kills whoever it likes
                how = str(error).partition("died (")[2].partition(")")[0]
                deadly[number] = f"the process that decoded it died ({how}), twice; replace it or leave it out"
            suspected.add(number)


def _tasks(images: Iterator[NamedImage]) -> Iterator[DecodeTask]:
    number = 0
    while chunk := tuple(itertools.islice(images, CHUNK)):
        yield DecodeTask(number, chunk)
        number += len(chunk)


def _in_slots(tasks: Iterator[DecodeTask], slots: int, sent: deque[DecodeTask], deadly: dict[int, str]) -> Iterator[DecodeTask]:
    """Each with its part of the memory; what has killed a process is not tried again."""
    for turn, task in enumerate(tasks):
        if any(task.number <= number < task.number + len(task.images) for number in deadly):
            marked = (
                replace(image, error=deadly[task.number + row]) if task.number + row in deadly else image
                for row, image in enumerate(task.images)
            )
            task = replace(task, images=tuple(marked))
        task = replace(task, slot=turn % slots)
        sent.append(task)
        yield task


def _collect(preprocess: Preprocess, memory: SharedBuffer, task: DecodeTask, done: DecodedTask) -> DecodedImages:
    good = [row for row, error in enumerate(done.errors) if error is None]
    slot = memory.array()[done.slot]
    pixels = torch.empty(len(good), *slot.shape[1:])
    values = pixels.numpy()
    for at, row in enumerate(good):
        preprocess.scale_into(values[at], slot[row])
    return DecodedImages(tuple(image.path for image in task.images), done.errors, pixels)


def batches(parts: Iterator[DecodedImages], size: int) -> Iterator[DecodedImages]:
    """The same in batches for the model: `size` readable images each but the last, and bounded in those that are not."""
    paths: list[str] = []
    errors: list[str | None] = []
    pixels: list[Tensor] = []
    good = 0

    def batch() -> DecodedImages:
        return DecodedImages(tuple(paths), tuple(errors), torch.cat(pixels))

    for part in parts:
        row = 0
        for path, error in zip(part.paths, part.errors, strict=True):
            paths.append(path)
            errors.append(error)
            if error is None:
                pixels.append(part.pixels[row : row + 1])
                row, good = row + 1, good + 1
            if good == size or len(paths) - good >= 8 * size:
                yield batch() if pixels else DecodedImages(tuple(paths), tuple(errors), part.pixels[:0])
                paths, errors, pixels, good = [], [], [], 0
    if paths:
        yield batch() if pixels else DecodedImages(tuple(paths), tuple(errors), torch.empty(0))


def shard(images: Iterator[NamedImage], process: int, processes: int, start: int = 0) -> Iterator[NamedImage]:
    """Every `processes`-th image, from the `start`-th of this process's own."""
    return itertools.islice(images, process + start * processes, None, processes)
