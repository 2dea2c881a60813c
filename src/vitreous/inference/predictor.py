"""A list of images through a model to one row of predictions each, in the order of the list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitreous.core.device import PrecisionName as Precision
from vitreous.core.distributed import World, all_gather
from vitreous.core.errors import VitreousError
from vitreous.inference.batches import batches, check_fixed_size, decode_images
from vitreous.inference.image_list import NamedImage
from vitreous.inference.prediction_sets import PredictionSets
from vitreous.inference.predictions import top_predictions
from vitreous.inference.rows import Row
from vitreous.inference.runner import LoadedModel, Runner

BLOCK = 64  # rows of each process that are brought together at once
# Weights that are finite, but too large, overflow on the way.
_NOT_FINITE = "the model's output is not finite (NaN or infinity); its weights or preprocessing are broken"


@dataclass(frozen=True)
class Predictor:
    """A model, where it runs and how many images at once."""

    clf: LoadedModel
    device: torch.device
    precision: Precision
    top: int
    workers: int
    batch_size: int
    sets: PredictionSets | None = None

    def __post_init__(self) -> None:
        config = self.clf.model.config
        if not config.classes:
            raise VitreousError(
                f"{config.name} has no head, so it gives features but cannot predict; `vitreous fewshot --save` or "
                f"`vitreous finetune` gives it one"
            )
        check_fixed_size(self.clf.preprocess)

    def rows(self, images: Iterator[NamedImage]) -> Iterator[Sequence[Row]]:
        """The rows of all images in their order, a batch at a time."""
        with Runner(self.clf.model, self.device, self.precision, lean=True, engine=self.clf.engine) as runner:
            for batch in batches(decode_images(images, self.clf.preprocess, self.workers), self.batch_size):
                pixels = [image.pixels for image in batch if image.pixels is not None]
                found = self._predict(runner, torch.stack(pixels)) if pixels else iter(())
                yield [
                    Row(image.path, error=image.error) if image.error is not None else replace(next(found), path=image.path)
                    for image in batch
                ]

    def _predict(self, runner: Runner, images: Tensor) -> Iterator[Row]:
        """Rows without a path."""
        outputs = runner.run(images)
        predictions = top_predictions(outputs.logits, self.clf.classes, self.top, sigmoid=self.clf.sigmoid)
        sets = [None] * len(images) if self.sets is None else self.sets.names(outputs.logits, self.clf.classes)
        for finite, best, members in zip(outputs.finite().tolist(), predictions, sets, strict=True):
            yield Row("", *best, set=members) if finite else Row("", error=_NOT_FINITE)


def interleave_rows(world: World, own: Iterator[Sequence[Row]]) -> Iterator[Sequence[Row]]:
    """The rows of all processes in the order of the list, at the first one; the others only take part."""
    rows = itertools.chain.from_iterable(own)
    while True:
        blocks = all_gather(world, list(itertools.islice(rows, BLOCK)))
        if not any(blocks):
            return
        if world.is_main:
            yield [row for turn in itertools.zip_longest(*blocks) for row in turn if row is not None]
