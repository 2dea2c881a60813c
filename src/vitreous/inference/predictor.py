"""Batches of images through a classifier, and the rows that come out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.classifier import Classifier, top_classes
from vitreous.core.distributed import World, all_gather
from vitreous.core.errors import VitreousError
from vitreous.inference.decode_images import batches, check_fixed_size, decode_images
from vitreous.inference.image_list import NamedImage
from vitreous.inference.rows import Row

FEW = 16  # images up to which finding the best size of a batch would take longer than running them
_SMALL = 4
BLOCK = 64  # rows of each process that are brought together at once


@dataclass(frozen=True)
class Predictor:
    """A classifier, where it runs and how much at once."""

    clf: Classifier
    device: torch.device
    precision: str
    top: int
    workers: int
    batch_size: int | Callable[[], int]  # or how to find it, where there are many images

    def __post_init__(self) -> None:
        if not self.clf.config.classes:
            raise VitreousError(
                f"{self.clf.config.name} has no head, so it gives features but cannot predict; `vitreous finetune` gives it one"
            )
        check_fixed_size(self.clf.preprocess)
        self.clf.model.to(self.device).eval()

    def rows(self, images: Iterator[NamedImage]) -> Iterator[Sequence[Row]]:
        """The rows of all images in their order, a batch at a time."""
        names, sigmoid = self.clf.classes, self.clf.checkpoint.outputs == "sigmoid"
        first = list(itertools.islice(images, FEW + 1))
        parts = decode_images(itertools.chain(first, images), self.clf.preprocess, self.workers)
        for batch in batches(parts, self._size(few=len(first) <= FEW)):
            logits = self._logits(batch.pixels) if len(batch.pixels) else torch.empty(0, len(names))
            best, numbers = top_classes(logits, self.top, sigmoid)
            found = zip(best.tolist(), numbers.tolist(), logits.isfinite().all(dim=1).tolist(), strict=True)
            yield [
                Row(path, error=error) if error is not None else _row(path, names, *next(found))
                for path, error in zip(batch.paths, batch.errors, strict=True)
            ]

    def _size(self, few: bool) -> int:
        if isinstance(self.batch_size, int):
            return self.batch_size
        return _SMALL if few else self.batch_size()

    def _logits(self, pixels: Tensor) -> Tensor:
        """Where the batch proves too large for the device, it is halved: what is free there changes while others use it."""
        try:
            with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
                logits: Tensor = self.clf.model(pixels.to(self.device))
                return logits.float().cpu()
        except torch.OutOfMemoryError:
            half = len(pixels) // 2  # the rest is outside of the handler, whose traceback holds the tensors
        if not half:
            raise VitreousError(f"one image does not fit into the memory of {self.device}; use a smaller --image-size")
        return torch.cat([self._logits(pixels[:half]), self._logits(pixels[half:])])


def _row(path: str, names: tuple[str, ...], values: list[float], indices: list[int], finite: bool) -> Row:
    if not finite:  # weights that are finite, but too large, overflow on the way
        return Row(path, error="the model's output is not finite (NaN or infinity); its weights or preprocessing are broken")
    return Row(path, tuple(names[index] for index in indices), tuple(values))


def interleave_rows(world: World, own: Iterator[Sequence[Row]]) -> Iterator[Sequence[Row]]:
    """The rows of all processes in the order of the list, at the first one; the others only take part."""
    rows = itertools.chain.from_iterable(own)
    while True:
        blocks = all_gather(world, list(itertools.islice(rows, BLOCK)))
        if not any(blocks):
            return
        if world.is_main:
            yield [row for turn in itertools.zip_longest(*blocks) for row in turn if row is not None]
