"""The paper's few-shot evaluation (PAPER 4.4): ridge regression on a few labelled images a class.

    rounds = fewshot([Task("photos", train, test)], shots=(1, 5, 10, 25), seeds=(0, 1, 2))

For every number of shots and every seed a subset is drawn, a ridge classifier fitted to its frozen features, and all test
images evaluated. The images of a smaller subset are among those of a larger one of the same seed, so that two points of a
learning curve differ by the added labels alone.

The penalty l2 is one number for everything (today's big_vision: 2^10); or it is chosen for every fit by leaving each training
image out in turn, which no test image has a part in and which is the default; or, as in the paper, it is the one for each
number of shots whose rank, averaged over all data sets, is best. That choice is made by the test images themselves: the
accuracies are those of the paper's protocol, and a little better than they would be on new images.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError, first_few
from vitreous.core.progress import Advance
from vitreous.data.sampling import derive_key
from vitreous.evaluation.knn import classify_by_neighbours
from vitreous.evaluation.majority import count_labels, majority_rate
from vitreous.evaluation.predictions import repeated_names
from vitreous.evaluation.ridge import L2S, Ridge
from vitreous.inference.features import Features

Shots = int | Literal["all"]
Choice = float | Literal["leave-one-out", "joint"]
Draw = Literal["seed", "first"]

FIXED = 1024.0  # 2^10: big_vision's, for whoever has nothing to choose by


@dataclass(frozen=True, eq=False)
class FewshotTask:
    """Features of the labelled images of one data set: those to draw from, and those to evaluate on."""

    name: str
    train: Features
    test: Features

    def __post_init__(self) -> None:
        if self.train.classes != self.test.classes:
            raise VitreousError(f"{self.name}: its parts have different classes; open them as one data set")
        if not all(np.isfinite(part.values).all() for part in (self.train, self.test)):
            raise VitreousError(f"{self.name}: some images have features that are not finite; the model is broken")
        if len(set(self.train.targets().tolist())) < 2:
            raise VitreousError(
                f"{self.name}: its training images are of one class only ({self.train.classes[self.train.labels[0][0]]}); "
                f"there is nothing to tell apart"
            )
        if twice := repeated_names(self.train.ids) or repeated_names(self.test.ids):
            raise VitreousError(f"{self.name}: {first_few(twice, 3)} is there twice; remove one, or accuracy counts it double")
        if both := sorted(set(self.train.ids) & set(self.test.ids)):
            raise VitreousError(
                f"{self.name}: {first_few(both, 3)} is in both the training and the test images; remove it from one split"
            )

    @functools.cached_property
    def majority(self) -> float:
        """Accuracy of always predicting the most frequent class of the training images."""
        train, test = (count_labels(part.labels, len(part.classes)) for part in (self.train, self.test))
        return majority_rate(test, train, len(self.test))

    def fewest(self) -> tuple[int, str]:
        """How many training images the smallest class that is asked for has, and its name."""
        return smallest_class(self.train.targets(), self.test.targets(), self.train.classes)


def smallest_class(train: NDArray[np.int64], test: NDArray[np.int64], classes: Sequence[str]) -> tuple[int, str]:
    """How many training images the smallest class has that is fitted to or evaluated on, and its name; -1 is no label."""
    counts, evaluated = (np.bincount(targets[targets >= 0], minlength=len(classes)) for targets in (train, test))
    there = np.flatnonzero((counts > 0) | (evaluated > 0))
    least = int(there[np.argmin(counts[there])])
    return int(counts[least]), classes[least]


def parse_shots(text: str | int | Sequence[Shots] | None) -> tuple[Shots, ...] | None:
    """Also of a number or several, as one writes it in Python."""
    if text is None:
        return None
    text = text if isinstance(text, str) else ",".join(map(str, [text] if isinstance(text, int) else text))
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word != "all" and not (word.isascii() and word.isdigit() and int(word) >= 1)]
    if wrong or len(set(words)) < len(words):
        raise VitreousError(f"--shots {text}: write numbers of images once each, as 1,5,10,25, or all")
    return tuple("all" if word == "all" else int(word) for word in words)


def check_shots(shots: Sequence[Shots], name: str, smallest: tuple[int, str]) -> None:
    """`smallest` is what `fewest` says of the data called `name`."""
    asked, (few, label) = max((number for number in shots if number != "all"), default=1), smallest
    if few < asked:
        remedy = f"use --shots {few}" if few else "remove it, or give it some"
        raise VitreousError(f"--shots {asked}: class {label!r} of {name} has {few:,} training images; {remedy}")


@dataclass(frozen=True, eq=False)
class FewshotResult:
    """One subset, one fit, one accuracy."""

    data: str
    shots: Shots
    seed: int | None  # None where nothing was drawn at random
    l2: float
    accuracy: float
    majority: float  # accuracy of always predicting the most frequent class
    n_train: int
    n_test: int
    fitted: float  # accuracy on the training subset itself
    left_out: float  # accuracy on each image of the subset, by a fit to all others
    per_class: float  # training images of a class, on average
    right: NDArray[np.bool_]  # which test images were right
    knn: float | None = None  # accuracy of the nearest neighbours in the subset; see `knn`

    def record(self) -> dict[str, Any]:
        names = ("data", "shots", "seed", "l2", "accuracy", "majority", "n_train", "n_test", "fitted", "left_out", "knn")
        return {name: getattr(self, name) for name in names}


def fewshot(
    tasks: Sequence[FewshotTask],
    *,
    shots: Sequence[Shots],
    seeds: Sequence[int] = (0, 1, 2),
    l2: Choice = "leave-one-out",
    draw: Draw = "seed",
    advance: Advance = lambda more: None,
) -> tuple[FewshotResult, ...]:
    """Every task, number of shots and seed. `advance` is told of each fit, of which there are `fits`."""
    for task in tasks:
        check_shots(shots, task.name, task.fewest())
    rounds = []
    for number in shots:
        drawn = _seeds(number, seeds, draw)
        chosen = _joint(tasks, number, drawn, advance) if l2 == "joint" else l2
        for task, seed in itertools.product(tasks, drawn):
            rounds.append(_round(task, number, seed, chosen))
            advance(1)
    return tuple(rounds)


def fits(tasks: int, shots: Sequence[Shots], seeds: Sequence[int], l2: Choice, draw: Draw) -> int:
    """How many there are to be."""
    return tasks * sum(len(_seeds(number, seeds, draw)) for number in shots) * (2 if l2 == "joint" else 1)


def _seeds(shots: Shots, seeds: Sequence[int], draw: Draw) -> tuple[int | None, ...]:
    return (None,) if shots == "all" or draw == "first" else tuple(seeds)


def draw_subset(task: FewshotTask, shots: Shots, seed: int | None) -> NDArray[np.int64]:
    """Rows of the training subset: of every class the first so many, in the order of the data or in the seed's.

    The seed's order goes by the images' ids alone, so it is the same wherever the files lie. An image with several labels
    counts for the first.
    """
    if shots == "all":
        return np.arange(len(task.train))
    targets = task.train.targets()
    order = np.arange(len(targets))
    if seed is not None:
        order = np.argsort(np.array([derive_key("fewshot", seed, name) for name in task.train.ids], np.uint64), kind="stable")
    of_class = order[np.argsort(targets[order], kind="stable")]
    counts = np.bincount(targets, minlength=1)
    place = np.arange(len(of_class)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(of_class[place < shots])


def _fit(task: FewshotTask, shots: Shots, seed: int | None) -> tuple[Ridge, Features]:
    subset = task.train if shots == "all" else task.train.some(draw_subset(task, shots, seed))
    return Ridge(torch.from_numpy(subset.values), subset.labels, len(subset.classes)), subset


def choose_l2(ridge: Ridge, labels: Sequence[tuple[int, ...]], l2: Choice) -> float:
    """The number that was asked for, or the best by leaving each image out in turn."""
    if not isinstance(l2, str):
        return l2
    # Without its only image a class cannot be named, whatever the l2: then nothing tells one from another.
    return ridge.choose() if len(labels) > len({own[0] for own in labels}) else FIXED


def _round(task: FewshotTask, shots: Shots, seed: int | None, l2: Choice) -> FewshotResult:
    ridge, subset = _fit(task, shots, seed)
    l2 = choose_l2(ridge, subset.labels, l2)
    right = _right(ridge.classify(torch.from_numpy(task.test.values), l2).numpy(), task.test.labels)
    own = _right(ridge.classify(torch.from_numpy(subset.values), l2).numpy(), subset.labels)
    return FewshotResult(
        data=task.name,
        shots=shots,
        seed=seed,
        l2=l2,
        accuracy=float(right.mean()),
        majority=task.majority,
        n_train=len(subset),
        n_test=len(right),
        fitted=float(own.mean()),
        left_out=ridge.leave_one_out([l2])[0],
        per_class=len(subset) / len(set(subset.targets().tolist())),
        right=right,
        knn=float(_right(classify_by_neighbours(subset, task.test.values), task.test.labels).mean()),
    )


def _right(named: NDArray[np.int64], labels: Sequence[tuple[int, ...]]) -> NDArray[np.bool_]:
    return np.array([name in own for name, own in zip(named.tolist(), labels, strict=True)], bool)


# One l2 for all data sets ----------------------------------------------------------------------------------------------


def _joint(tasks: Sequence[FewshotTask], shots: Shots, seeds: Sequence[int | None], advance: Advance) -> float:
    accuracies = np.zeros((len(tasks), len(L2S)))
    for row, task in enumerate(tasks):
        for seed in seeds:
            named = _fit(task, shots, seed)[0].classify_for(torch.from_numpy(task.test.values), L2S).numpy()
            accuracies[row] += [_right(own, task.test.labels).mean() for own in named]
            advance(1)
    return L2S[best_mean_rank(accuracies / len(seeds))]


def best_mean_rank(accuracies: NDArray[np.float64]) -> int:
    """The column whose rank within its row, averaged over the rows, is best; of equals the last, the largest l2.

    Equal accuracies share the mean of their ranks. Ranks, and not accuracies, are averaged: otherwise the data set whose
    accuracies differ most would choose for all.
    """
    below = (accuracies[:, None, :] < accuracies[:, :, None]).sum(axis=2)
    same = (accuracies[:, None, :] == accuracies[:, :, None]).sum(axis=2)
    ranks = (below + (same - 1) / 2).mean(axis=0)
    return int(len(ranks) - 1 - np.argmax(ranks[::-1]))
