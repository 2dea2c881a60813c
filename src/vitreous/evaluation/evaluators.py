"""Evaluators take one rank's batches with a model's outputs (`update`) and give a result (`result`): the same inside training
and after it."""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitreous.core.distributed import World, all_gather, all_reduce_sum
from vitreous.data.loading.loader import Batch
from vitreous.data.transforms.denormalise import denormalise
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.counts import Counts
from vitreous.evaluation.validation_result import Mistake, Outcome, ValidationResult
from vitreous.inference.predictions import top_predictions

WORST_MISTAKES = 24
_TOP = 5


class ScoredLogits(NamedTuple):
    """Logits (B, C) and the loss of each image (B,), defined by whatever computed the logits."""

    logits: Tensor
    losses: Tensor


class ClassificationEvaluator:
    """Accuracy, loss, confusion matrix and, where `mistakes` are to be kept, those with the highest loss and every outcome.

    `result` is collective: every rank calls it, and all of them get the result over all images.
    """

    def __init__(
        self,
        classes: tuple[str, ...],
        preprocess: Preprocess,
        world: World,
        *,
        split: str,
        sigmoid: bool = False,
        mistakes: int = WORST_MISTAKES,
    ) -> None:
        self.classes, self.preprocess, self.world, self.split, self.sigmoid = classes, preprocess, world, split, sigmoid
        self.counts = Counts(len(classes))
        self._max_mistakes = mistakes
        # A heap, the lowest loss first; the number decides between equal losses.
        self._worst: list[tuple[float, int, Mistake]] = []
        self._number = itertools.count()
        self._outcomes: list[Outcome] = []

    def update(self, batch: Batch, outputs: ScoredLogits) -> None:
        self.counts.update(outputs.logits, batch.labels, outputs.losses)
        if not self._max_mistakes:
            return
        predicted = outputs.logits.argmax(dim=1).tolist()
        outcomes = map(Outcome, batch.ids, batch.labels, predicted)
        self._outcomes += [outcome for outcome in outcomes if outcome.labels]
        for row, (loss, guess) in enumerate(zip(outputs.losses.tolist(), predicted, strict=True)):
            labels, full = batch.labels[row], len(self._worst) == self._max_mistakes
            if labels and guess not in labels and (not full or loss > self._worst[0][0]):
                entry = (loss, next(self._number), self._mistake(batch, row, outputs.logits[row], loss))
                (heapq.heappushpop if full else heapq.heappush)(self._worst, entry)

    def _mistake(self, batch: Batch, row: int, logits: Tensor, loss: float) -> Mistake:
        (best,) = top_predictions(logits[None], self.classes, _TOP, sigmoid=self.sigmoid)
        return Mistake(
            id=batch.ids[row],
            pixels=denormalise(self.preprocess, batch.images[row]),
            truth=tuple(self.classes[label] for label in batch.labels[row]),
            guesses=tuple(zip(*best, strict=True)),
            loss=loss,
        )

    def all_counts(self) -> Counts:
        """The counts of all ranks."""
        self.counts.load(all_reduce_sum(self.world, self.counts.tensor()))
        return self.counts

    def result(self) -> ValidationResult:
        counts = self.all_counts()
        own = [mistake for _, _, mistake in self._worst]
        everyone = itertools.chain.from_iterable(all_gather(self.world, own))
        worst = sorted(everyone, key=lambda mistake: (-mistake.loss, mistake.id))[: self._max_mistakes]
        outcomes = itertools.chain.from_iterable(all_gather(self.world, self._outcomes))
        confusion = counts.confusion
        return ValidationResult(
            split=self.split,
            classes=self.classes,
            confusion=np.zeros((0, 0), np.int64) if confusion is None else confusion.numpy(),
            top1=counts.top1,
            top5=counts.top5,
            n=counts.n,
            loss=counts.loss,
            mistakes=tuple(worst),
            per_class=tuple(counts.per_class()),
            outcomes=tuple(sorted(outcomes)),
        )
