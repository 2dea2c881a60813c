"""Validation inside a run: every held-out image once, however many ranks share the work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.core.device import seed_generators
from vitreous.core.distributed import World, all_reduce_by_name
from vitreous.data.loading.loader import Batch, Loader
from vitreous.data.transforms.mixup import one_hot
from vitreous.evaluation.majority import describe_majority
from vitreous.evaluation.validation_result import ValidationResult

Autocast = Callable[[], AbstractContextManager[object]]


class Interrupted(Exception):
    """A signal came: here or at another rank."""


@dataclass(frozen=True)
class Evaluation:
    """What validation found."""

    metrics: dict[str, float]  # `loss` and `n` among them
    score: float  # the higher, the better; among equal ones the lower loss is
    result: ValidationResult | None = None  # of a classifier: per class, and its mistakes

    def describe(self) -> str:
        metrics, majority = self.metrics, None if self.result is None else self.result.majority
        beside = "" if majority is None else f" ({describe_majority(majority)})"
        accuracy = f", top-1 {metrics['top1']:.2%}{beside}" if "top1" in metrics else ""
        return f"loss {metrics['loss']:.4f}{accuracy} of {int(metrics['n']):,} images"


@dataclass(frozen=True)
class HeldOut:
    """The held-out images of a run, and what it takes to put them through its objective."""

    module: nn.Module  # the objective, as it is distributed over the ranks
    loader: Loader
    classes: tuple[str, ...]
    train_counts: Sequence[int] | NDArray[np.int64] | None  # images of each class in training
    world: World
    autocast: Autocast
    seed: int
    signals: Sequence[int]  # those that have come; `Interrupted` is raised at all ranks if one has

    def outputs(self, seeded: bool = False) -> Iterator[tuple[Batch, Tensor, dict[str, Tensor]]]:
        """Each of this rank's batches with what the objective returns for it, not in training mode.

        `seeded`: what it draws at random is the same each time.
        """
        training = self.module.training
        self.module.eval()
        try:
            for number, batch in enumerate(self._batches()):
                images, targets = never_empty(batch.images, one_hot(batch.labels, max(1, len(self.classes))))
                if seeded:
                    seed_generators(self.seed + number * self.world.world_size + self.world.rank, self.world.device)
                with torch.no_grad(), self.autocast():
                    losses, extras = self.module(images.to(self.world.device), targets.to(self.world.device))
                if len(batch):
                    yield batch, losses, extras
        finally:
            self.module.train(training)

    def _batches(self) -> Iterator[Batch]:
        """Batches; where other ranks have more of them, empty ones: a sharded model runs on all ranks or on none."""
        preprocess = self.loader.preprocess
        empty = Batch(torch.empty(0, preprocess.channels, *(preprocess.size or (1, 1))), (), (), 0)
        with contextlib.closing(self.loader.once()) as batches:  # type: ignore[type-var]
            while True:
                batch = next(batches, None)
                ranks = all_reduce_by_name(self.world, {"with_batch": batch is not None, "interrupted": bool(self.signals)})
                if ranks["interrupted"]:
                    raise Interrupted
                if not ranks["with_batch"]:
                    return
                yield empty if batch is None else batch


def mean_metrics(held_out: HeldOut, names: Sequence[str]) -> dict[str, float]:
    """The means of the loss and of `names` over the held-out images, for an objective without labels; and `n`."""
    sums = dict.fromkeys(("n", "loss", *names), 0.0)
    for batch, losses, extras in held_out.outputs(seeded=True):
        sums["n"] += len(batch)
        for name, value in {"loss": losses.sum(), **{name: extras[name] for name in names}}.items():
            sums[name] += float(value)
    sums = all_reduce_by_name(held_out.world, sums)
    n = sums.pop("n")
    return {name: value / max(n, 1.0) for name, value in sums.items()} | {"n": n}


def never_empty(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """A sharded model runs on all ranks or on none, so a rank without images runs on a black one, which does not count."""
    return (images, targets) if len(images) else (torch.zeros(1, *images.shape[1:]), torch.zeros(1, targets.shape[1]))
