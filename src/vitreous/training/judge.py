"""Judging by held-out images, inside a run: every image once, however many processes share the work."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.data.loader import Batch, Loader
from vitreous.data.mixup import one_hot
from vitreous.evaluation.counts import Counts
from vitreous.evaluation.outcome import Mistake, Outcome
from vitreous.world import World, gathered, total


class Asked(Exception):
    """A signal came: here or at another process."""


MISTAKES = 24  # the worst, as pictures


@torch.no_grad()
def judged(
    module: nn.Module,
    loader: Loader,
    classes: tuple[str, ...],
    world: World,
    autocast: Any,
    probabilities: Any,
    wanted: Sequence[int],
) -> Outcome:
    """Accuracy, confusion and the worst mistakes of a classifier."""
    counts = Counts(len(classes))
    worst: list[tuple[float, int, Mistake]] = []  # a heap of the largest losses
    number = itertools.count()
    training = module.training
    module.eval()
    try:
        for batch in _together(loader, world, wanted):
            real = len(batch) > 0
            images = batch.images if real else torch.zeros(1, *batch.images.shape[1:])  # all must take part in a pass
            targets = one_hot(batch.labels, len(classes)) if real else torch.zeros(1, len(classes))
            with autocast():
                losses, extras = module(images.to(world.device), targets.to(world.device))
            if not real:
                continue
            logits, losses = extras["logits"].float().cpu(), losses.float().cpu()
            counts.update(logits, batch.labels, losses)
            guesses = logits.argmax(dim=1).tolist()
            for row, (loss, guess) in enumerate(zip(losses.tolist(), guesses, strict=True)):
                if batch.labels[row] and guess not in batch.labels[row] and (len(worst) < MISTAKES or loss > worst[0][0]):
                    entry = (loss, next(number), _mistake(loss, batch, row, probabilities(logits[row]), classes))
                    (heapq.heappush if len(worst) < MISTAKES else heapq.heappushpop)(worst, entry)
    finally:
        module.train(training)
    counts.load(total(world, counts.tensor()))
    own = [mistake for _, _, mistake in worst]
    everyone = sorted(itertools.chain.from_iterable(gathered(world, own)), key=lambda m: (-m.loss, m.id))[:MISTAKES]
    confusion = counts.confusion
    return Outcome(
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


@torch.no_grad()
def mean_of(
    module: nn.Module, loader: Loader, world: World, autocast: Any, seed: int, wanted: Sequence[int]
) -> dict[str, float]:
    """The mean over held-out images of an objective that needs no labels. What it draws by chance is the same each time."""
    sums: dict[str, float] = {}
    training = module.training
    module.eval()
    try:
        for number, batch in enumerate(_together(loader, world, wanted)):
            real = len(batch) > 0
            images = batch.images if real else torch.zeros(1, *batch.images.shape[1:])
            torch.manual_seed(seed + number * world.processes + world.process)
            with autocast():
                losses, extras = module(images.to(world.device), torch.zeros(len(images), 1, device=world.device))
            if real:
                for name, value in {"loss": losses.sum(), **extras}.items():
                    if value.ndim == 0:
                        sums[name] = sums.get(name, 0.0) + float(value)
                sums["n"] = sums.get("n", 0.0) + len(batch)
    finally:
        module.train(training)
    names = sorted({name for own in gathered(world, list(sums)) for name in own})
    sums_of_all = total(world, torch.tensor([sums.get(name, 0.0) for name in names], dtype=torch.float64))
    found = dict(zip(names, sums_of_all.tolist(), strict=True))
    n = found.pop("n", 0.0)
    return {name: value / max(n, 1.0) for name, value in found.items()} | {"n": n}


def _together(loader: Loader, world: World, wanted: Sequence[int]) -> Iterator[Batch]:
    """Batches; where other processes have more of them, empty ones: a model in pieces runs on all or on none."""
    height, width = loader.preprocess.size or (1, 1)
    empty = Batch(torch.empty(0, loader.preprocess.channels, height, width), (), (), 0)
    with contextlib.closing(loader.once()) as batches:  # type: ignore[type-var]
        while True:
            batch = next(batches, None)
            more, stop = total(world, torch.tensor([float(batch is not None), float(bool(wanted))])).tolist()
            if stop:
                raise Asked
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
