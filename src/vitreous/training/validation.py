"""Judging by held-out images, inside a run: every image once, however many processes share the work."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.core.distributed import World, all_gather, all_reduce_sum
from vitreous.data.loading.loader import Batch, Loader
from vitreous.data.transforms.mixup import one_hot
from vitreous.evaluation.counts import Counts
from vitreous.evaluation.validation_result import Mistake, ValidationResult

MISTAKES = 24  # the worst, as pictures

Autocast = Callable[[], AbstractContextManager[object]]


class Interrupted(Exception):
    """A signal came: here or at another process."""


def validate(
    module: nn.Module,
    loader: Loader,
    classes: tuple[str, ...],
    world: World,
    autocast: Autocast,
    probabilities: Callable[[Tensor], Tensor],
    signals: Sequence[int],
) -> ValidationResult:
    """Accuracy, confusion and the worst mistakes of a classifier."""
    counts = Counts(len(classes))
    worst: list[tuple[float, int, Mistake]] = []  # a heap of the largest losses
    number = itertools.count()
    for batch, losses_there, extras in _answers(module, loader, len(classes), world, autocast, signals):
        logits, losses = extras["logits"].float().cpu(), losses_there.float().cpu()
        counts.update(logits, batch.labels, losses)
        guesses = logits.argmax(dim=1).tolist()
        for row, (loss, guess) in enumerate(zip(losses.tolist(), guesses, strict=True)):
            if batch.labels[row] and guess not in batch.labels[row] and (len(worst) < MISTAKES or loss > worst[0][0]):
                entry = (loss, next(number), _mistake(loss, batch, row, probabilities(logits[row]), classes))
                (heapq.heappush if len(worst) < MISTAKES else heapq.heappushpop)(worst, entry)
    counts.load(all_reduce_sum(world, counts.tensor()))
    own = [mistake for _, _, mistake in worst]
    everyone = sorted(itertools.chain.from_iterable(all_gather(world, own)), key=lambda m: (-m.loss, m.id))[:MISTAKES]
    confusion = counts.confusion
    return ValidationResult(
        split=loader.data.split,
        classes=classes,
        confusion=np.zeros((0, 0), np.int64) if confusion is None else confusion.numpy(),
        top1=counts.top1,
        top5=counts.top5,
        n=counts.n,
        loss=counts.loss,
        mistakes=tuple(everyone),
        per_class=tuple(counts.per_class()),
    )


def validate_loss(
    module: nn.Module,
    loader: Loader,
    classes: int,
    sums: Sequence[str],
    world: World,
    autocast: Autocast,
    seed: int,
    signals: Sequence[int],
) -> dict[str, float]:
    """The mean of the loss and of `sums` over held-out images, for an objective that needs no labels; and `n`, their number.

    What it draws by chance is the same each time.
    """
    found = torch.zeros(len(sums) + 2, dtype=torch.float64)
    for batch, losses, extras in _answers(module, loader, classes, world, autocast, signals, seed):
        found += torch.tensor([float(len(batch)), float(losses.sum()), *(float(extras[name]) for name in sums)])
    n, *values = all_reduce_sum(world, found).tolist()
    return {name: value / max(n, 1.0) for name, value in zip(("loss", *sums), values, strict=True)} | {"n": n}


def never_empty(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """A model in pieces runs on all processes or on none, so one without images runs on a black one, which does not count."""
    return (images, targets) if len(images) else (torch.zeros(1, *images.shape[1:]), torch.zeros(1, targets.shape[1]))


def _answers(
    module: nn.Module,
    loader: Loader,
    classes: int,
    world: World,
    autocast: Autocast,
    signals: Sequence[int],
    seed: int | None = None,
) -> Iterator[tuple[Batch, Tensor, dict[str, Tensor]]]:
    """Each of this process's batches with what the objective says of it, not in training mode."""
    training = module.training
    module.eval()
    try:
        for number, batch in enumerate(_together(loader, world, signals)):
            images, targets = never_empty(batch.images, one_hot(batch.labels, max(1, classes)))
            if seed is not None:
                torch.manual_seed(seed + number * world.world_size + world.rank)
            with torch.no_grad(), autocast():
                losses, extras = module(images.to(world.device), targets.to(world.device))
            if len(batch):
                yield batch, losses, extras
    finally:
        module.train(training)


def _together(loader: Loader, world: World, signals: Sequence[int]) -> Iterator[Batch]:
    """Batches; where other processes have more of them, empty ones: a model in pieces runs on all or on none."""
    height, width = loader.preprocess.size or (1, 1)
    empty = Batch(torch.empty(0, loader.preprocess.channels, height, width), (), (), 0)
    with contextlib.closing(loader.once()) as batches:  # type: ignore[type-var]
        while True:
            batch = next(batches, None)
            more, stop = all_reduce_sum(world, torch.tensor([float(batch is not None), float(bool(signals))])).tolist()
            if stop:
                raise Interrupted
            if not more:
                return
            yield empty if batch is None else batch


def _mistake(loss: float, batch: Batch, row: int, probabilities: Tensor, classes: tuple[str, ...]) -> Mistake:
    best = probabilities.topk(min(5, len(classes)))
    guesses = tuple((classes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True))
    truth = tuple(classes[label] for label in batch.labels[row])
    return Mistake(batch.ids[row], picture_of(batch.images[row]), truth, guesses, loss)


def picture_of(image: Tensor) -> NDArray[np.uint8]:
    """For people: stretched from its own darkest to its lightest value, since preprocessing has moved the values anywhere."""
    low, high = float(image.min()), float(image.max())
    pixels = ((image - low) / max(high - low, 1e-12) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels[..., :3])
