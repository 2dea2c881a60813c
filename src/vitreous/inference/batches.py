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


class DecodedImage(NamedTuple):
    path: str
    error: str | None  # or else
    pixels: Tensor | None  # (C, H, W), ready for the model


@dataclass(frozen=True)
class _Task:
    number: int  # of its first image
    images: list[NamedImage]
    slot: int = 0  # of the shared memory, for the pixels of each at its place in the task


class _Decoder:
    """A task in, a filled slot out."""

    def __init__(self, preprocess: Preprocess, memory: SharedBuffer) -> None:
        self.preprocess, self.memory = preprocess, memory

    def __call__(self, task: _Task) -> list[str | None]:
        """The error of each image; None: its pixels are there."""
        slot = self.memory.array()[task.slot]
        # One image is too little to share.
        with using_threads(1):
            return [self._decode(slot[row], task.number + row, image) for row, image in enumerate(task.images)]

    def _decode(self, out: NDArray[Any], number: int, image: NamedImage) -> str | None:
        """What is wrong with the image, if it could not be written."""
        if image.error is not None:
            return image.error
        set_current_item(str(number))
        try:
            content = image.path if image.content is None else image.content
            self.preprocess.write_pixels(out, self.preprocess.transform(content, place=image.path))
        except BadImage as error:
            return error.why
        except VitreousError as error:  # too small for a crop, for one
            return str(error).removeprefix(f"{image.path}: ")
        except MemoryError:
            return "not enough memory to decode it; make it smaller, or use fewer --workers"
        return None


def check_fixed_size(preprocess: Preprocess) -> None:
    if preprocess.size is None:
        raise VitreousError(f"preprocessing {str(preprocess)!r} leaves images of different sizes; end it with a crop")
    if preprocess.random:
        raise VitreousError(f"preprocessing {str(preprocess)!r} is random, which is for training")


def decode_images(images: Iterator[NamedImage], preprocess: Preprocess, workers: int) -> Iterator[DecodedImage]:
    """Every image, in order. At most AHEAD tasks per worker are drawn from `images` before they are needed."""
    check_fixed_size(preprocess)
    height, width = preprocess.size or (0, 0)
    first = list(itertools.islice(images, CHUNK + 1))
    if len(first) <= CHUNK:  # starting processes would take longer than the work
        workers = 0
    slots = max(1, workers) * (AHEAD + 1)
    memory = SharedBuffer(slots, (CHUNK, preprocess.channels, height, width), eight_bit=preprocess.eight_bit)
    images = itertools.chain(first, images)
    chunks = iter(lambda: list(itertools.islice(images, CHUNK)), [])
    tasks = (_Task(CHUNK * turn, chunk) for turn, chunk in enumerate(chunks))
    turns = itertools.cycle(range(slots))
    sent: deque[_Task] = deque()
    suspected: set[int] = set()
    while True:
        again, sent = sent, deque()
        sending = _send(itertools.chain(again, tasks), turns, sent)
        try:
            for errors in run_in_order(_Decoder(preprocess, memory), sending, workers, ahead=AHEAD):
                done = sent.popleft()
                for image, error, pixels in zip(done.images, errors, memory.array()[done.slot], strict=False):
                    yield DecodedImage(image.path, error, None if error else _scale(preprocess, pixels))
            return
        except WorkerDied as error:
            _suspect(error, sent, suspected)


def _send(tasks: Iterable[_Task], turns: Iterator[int], sent: deque[_Task]) -> Iterator[_Task]:
    """Each with its part of the memory."""
    for task in tasks:
        sent.append(replace(task, slot=next(turns)))
        yield sent[-1]


def _scale(preprocess: Preprocess, pixels: NDArray[Any]) -> Tensor:
    scaled = torch.empty(pixels.shape)
    preprocess.scale_into(scaled.numpy(), pixels)
    return scaled


def _suspect(error: WorkerDied, sent: Iterable[_Task], suspected: set[int]) -> None:
    """An image that has killed two processes is not tried again. Once may be chance: a system that is short of memory may
    kill any process."""
    number = int(error.item) if error.item.isdigit() else -1
    task = next((task for task in sent if task.number <= number < task.number + len(task.images)), None)
    if task is None or task.images[number - task.number].error is not None:
        raise VitreousError(f"a process that decodes images {str(error).partition(' died ')[2]}; start again") from error
    if number in suspected:
        how = str(error).partition("died (")[2].partition(")")[0]
        reason = f"the process that decoded it died ({how}), twice; replace it or leave it out"
        task.images[number - task.number] = replace(task.images[number - task.number], error=reason)
    suspected.add(number)


def batches(images: Iterable[DecodedImage], size: int) -> Iterator[list[DecodedImage]]:
    """The same in batches for the model: `size` readable images each but the last, and bounded in those that are not."""
    batch: list[DecodedImage] = []
    readable = 0
    for image in images:
        batch.append(image)
        readable += image.error is None
        if readable == size or len(batch) - readable >= 8 * size:
            yield batch
            batch, readable = [], 0
    if batch:
        yield batch
