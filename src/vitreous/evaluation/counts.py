"""How many were right: sums over examples, which add up over batches and processes to what one process would have found.

    counts = Counts(classes)
    counts.update(logits, batch.labels, losses)          # as often as there are batches, each example in one of them
    sums = counts.tensor(); all_reduce(sums); counts.load(sums)
    counts.top1, counts.loss, counts.per_class()

Nothing is averaged before the end: a mean of batch means would give the examples of a small last batch more weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.core.errors import VitreousError

MOST_CONFUSED = 2048  # classes for which every pair is counted: 34 MB; of 21,843 classes it would be 3.8 GB
_N, _UNLABELLED, _TOP1, _TOP5, _LOSS, _SCALARS = range(6)


class PerClass(NamedTuple):
    """0 stands for a share of nothing, as in scikit-learn; `n` tells whether there was anything."""

    precision: float  # of the images that were taken for this class, those that have its label
    recall: float  # of the images that have its label, those that were taken for it
    f1: float
    n: int  # images with this label


class Counts:
    """An image with several labels (ImageNet ReaL, multi-label sets) is right if the most probable class is one of them.

    Images without labels are counted in `unlabelled` and nowhere else. Of equal logits the first class counts as the most
    probable, for top 1 and top 5 alike: a zero head, all of whose logits are equal, gets what always naming the first
    classes would.
    A row with a NaN names no class and is wrong.
    """

    def __init__(self, classes: int, *, confusion: bool | None = None) -> None:
        """`confusion` says whether all pairs of classes are counted; by default, where there are not too many."""
        if classes < 1:
            raise VitreousError(f"a model of {classes} classes has nothing to evaluate; give it a head with classes=...")
        self.classes = classes
        self._confused = classes <= MOST_CONFUSED if confusion is None else confusion
        # One vector, so that one all-reduce takes it all. float64 holds whole numbers exactly up to 9e15.
        sizes = (_SCALARS, 3 * classes, classes * classes if self._confused else 0)
        self._sums = torch.zeros(sum(sizes), dtype=torch.float64)
        # Of each class: images with its label, images taken for it, and those of which both are true.
        _, self._by_class, self._pairs = self._sums.split(sizes)

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Sequence[tuple[int, ...]], losses: Tensor) -> None:
        """Add a batch: logits (B, classes), the labels of each image, and the loss of each, (B,)."""
        wrong = [label for own in labels for label in own if not 0 <= label < self.classes]
        if wrong:
            raise VitreousError(f"label {wrong[0]} for a model of {self.classes} classes; the data belongs to another model")
        rows = [row for row, own in enumerate(labels) if own]
        self._sums[_UNLABELLED] += len(labels) - len(rows)
        if not rows:
            return
        at, label = torch.tensor([(at, label) for at, row in enumerate(rows) for label in dict.fromkeys(labels[row])]).T
        first = torch.tensor([labels[row][0] for row in rows])

        if len(rows) < len(labels):
            chosen = torch.tensor(rows, device=logits.device)
            logits, losses = logits[chosen], losses[chosen]
        ranks = _ranks(logits, at.to(logits.device), label.to(logits.device)).cpu()
        top, broken = logits.argmax(dim=1).cpu(), logits.isnan().any(dim=1).cpu()

        best = torch.full((len(rows),), self.classes).scatter_reduce(0, at, ranks, "amin")
        best[broken] = self.classes
        self._sums[_N] += len(rows)
        self._sums[_TOP1] += (best < 1).sum()
        self._sums[_TOP5] += (best < 5).sum()
        self._sums[_LOSS] += losses.double().sum().cpu()
        seen = (label, top[~broken], top[best < 1])
        self._by_class += torch.cat([torch.bincount(values, minlength=self.classes) for values in seen])
        if self._confused:
            flat = first[~broken] * self.classes + top[~broken]
            self._pairs.index_add_(0, flat, torch.ones(len(flat), dtype=torch.float64))

    # Sums of several ---------------------------------------------------------------------------------------------------

    def tensor(self) -> Tensor:
        """All sums as one float64 vector, which may be added to another's, or reduced over processes."""
        return self._sums.clone()

    def load(self, sums: Tensor) -> None:
        """Replace all sums by what `tensor` gave, or a sum of such."""
        self._sums.copy_(sums)

    # What they come to -------------------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Images with labels."""
        return int(self._sums[_N])

    @property
    def unlabelled(self) -> int:
        return int(self._sums[_UNLABELLED])

    @property
    def top1(self) -> float:
        return self._share(_TOP1)

    @property
    def top5(self) -> float | None:
        """None where any five classes are all of them."""
        return self._share(_TOP5) if self.classes > 5 else None

    @property
    def loss(self) -> float:
        return self._share(_LOSS)

    def _share(self, place: int) -> float:
        if not self.n:
            raise VitreousError(
                f"there is no labelled image to evaluate on ({self.unlabelled:,} without); give labelled images"
            )
        return float(self._sums[place] / self._sums[_N])

    @property
    def confusion(self) -> Tensor | None:
        """(classes, classes), int64: row, the image's first label; column, what it was taken for. None if not counted."""
        return self._pairs.view(self.classes, self.classes).to(torch.int64) if self._confused else None

    def per_class(self) -> list[PerClass]:
        """Every label of an image counts for its class; with several, recall cannot be 1 for all, as one class is named."""
        labelled, named, right = self._by_class.view(3, self.classes)
        shares = [right / named.clamp(min=1), right / labelled.clamp(min=1), 2 * right / (labelled + named).clamp(min=1)]
        rows = torch.stack([*shares, labelled], dim=1).tolist()
        return [PerClass(precision, recall, f1, int(n)) for precision, recall, f1, n in rows]


def _ranks(logits: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    """How many classes stand before each label in its row: by logits, equal ones by number.

    Counted and not sorted: topk promises nothing of equal values, and could find a label in one batch and miss it in another.
    """
    columns = torch.arange(logits.shape[1], device=logits.device)
    ranks = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    block = max(1, (1 << 24) // logits.shape[1])  # an image may have many labels: comparisons in bounded memory
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        among, own = logits[rows[part]], labels[part, None]
        value = among.gather(1, own)
        ranks[part] = ((among > value) | ((among == value) & (columns < own))).sum(dim=1)
    return ranks
