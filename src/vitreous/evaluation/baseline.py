"""The closed-form baseline: a ridge classifier on frozen features of a sample, in seconds.

`vitreous finetune` by a recipe whose head starts from zero prints it before its first step. Whoever fine-tunes then knows what
there is to beat, and whether it was worth the while. How many images are used depends on what the model costs, and the sentence
says how many there were.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.core.progress import Advance, progress_bar
from vitreous.data.loading.loader import Loader
from vitreous.data.sampling import permute
from vitreous.data.source import Policy, Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.majority import count_labels, describe_majority, majority_rate
from vitreous.evaluation.ridge import L2S, Ridge
from vitreous.inference.runner import Runner, default_batch_size
from vitreous.models.build import Model
from vitreous.models.cost import compute_cost

TRAIN, TEST = 2000, 1000  # images, at most
LEAST = 64  # of each, whatever they cost
CPU_MACS, OTHER_MACS = 5e12, 2e14  # multiply-adds in all: under a minute on two cores, less on an accelerator
_BATCH = 32
_CHOOSING = 1e11  # multiply-adds of the choice among all l2; beyond, every fourth is enough


@dataclass(frozen=True)
class Baseline:
    accuracy: float
    l2: float  # chosen by leaving each training image out in turn
    left_out: float  # the accuracy on training images so left out
    n_train: int
    n_test: int
    seconds: float
    all_train: int | None = None  # how many there would have been, where that is known
    all_test: int | None = None
    bad: int = 0  # images that could not be read
    majority: float | None = None  # what always predicting the largest class would get

    @property
    def standard_error(self) -> float:
        """Of the accuracy, from the number of images it was measured on."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.n_test)

    def sentence(self) -> str:
        train, test = _format_count(self.n_train, self.all_train), _format_count(self.n_test, self.all_test)
        right = f"{self.accuracy:.1%} ± {100 * self.standard_error:.1f} of {test} held-out images"
        fit = f"fitted in closed form to {train} training images, l2 = 2^{math.log2(self.l2):g}"
        bad = f", {self.bad:,} unreadable" if self.bad else ""
        alone = "" if self.majority is None else f"; {describe_majority(self.majority)}"
        return f"to beat: frozen features with a linear classifier get {right} right{alone} ({fit}{bad}; {self.seconds:.0f} s)"


def _format_count(used: int, available: int | None) -> str:
    if available is None:
        return f"the first {used:,}"
    return f"{used:,}" if used == available else f"{used:,} of {available:,}"


def closed_form_baseline(
    start: Classifier | Model,
    train: Source | Stream,
    held_out: Source | Stream,
    preprocess: Preprocess,
    *,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    most: int = TRAIN,
    most_test: int = TEST,
    macs: float | None = None,
    bad_images: Policy = "stop",
) -> Baseline:
    """The accuracy of a ridge classifier (PAPER 4.4) on frozen features.

    `start` is the checkpoint as it was loaded: its features are taken after the representation layer, where there is one,
    which a model with a new head no longer has. It comes back as it was. `preprocess` is the fixed string of evaluation.
    A source is sampled by the seed, each class in its share; of a stream the first images are taken.
    """
    began = time.monotonic()
    model = start.model if isinstance(start, Classifier) else start
    all_train, all_test = _count_labelled(train), _count_labelled(held_out)
    few, few_test = _split_budget(affordable_images(model, preprocess, device, macs), all_train, all_test, most, most_test)

    with Runner(model, device, lean=True) as runner, progress_bar("closed-form baseline", few + few_test) as advance:
        reading: dict[str, Any] = {"workers": workers, "bad_images": bad_images}
        features, labels, bad = _run(
            runner, sample_images(train, few, seed, every_class=True), preprocess, few, advance, reading
        )
        drawn = sample_images(held_out, few_test, seed, every_class=False)
        tests, truths, bad_tests = _run(runner, drawn, preprocess, few_test, advance, reading)
    if not tests.isfinite().all():
        raise VitreousError(f"{held_out.where}: some images have features that are not finite; the model is broken")
    classes = len(train.classes)
    ridge = Ridge(features, labels, classes)
    l2 = ridge.choose(_l2s(len(features), features.shape[1], classes))
    named = ridge.classify(tests, l2).tolist()
    return Baseline(
        accuracy=sum(name in own for name, own in zip(named, truths, strict=True)) / len(truths),
        l2=l2,
        left_out=ridge.leave_one_out([l2])[0],
        n_train=len(labels),
        n_test=len(truths),
        seconds=time.monotonic() - began,
        all_train=all_train,
        all_test=all_test,
        bad=bad + bad_tests,
        majority=majority_rate(count_labels(truths, classes), count_labels(labels, classes), len(truths)),
    )


# How many, and which ---------------------------------------------------------------------------------------------------


def affordable_images(model: Model, preprocess: Preprocess, device: torch.device | str, macs: float | None = None) -> int:
    """How many images so many multiply-adds run; of one image, they are taken to grow with its area."""
    budget = macs if macs is not None else CPU_MACS if torch.device(device).type == "cpu" else OTHER_MACS
    (height, width), (own_height, own_width) = preprocess.size or model.config.image_size, model.config.image_size
    return int(budget * own_height * own_width / (compute_cost(model.config).macs * height * width))


def _split_budget(affordable: int, train: int | None, test: int | None, most: int, most_test: int) -> tuple[int, int]:
    """A third of what can be afforded to evaluate on, the rest to fit; what one side cannot use goes to the other."""
    affordable = max(affordable, 2 * LEAST)
    train = most if train is None else min(train, most)
    test = most_test if test is None else min(test, most_test)
    share = min(test, max(LEAST, affordable // 3))
    few = min(train, affordable - share)
    return few, min(test, affordable - few)


def _count_labelled(data: Source | Stream) -> int | None:
    return int((data.targets() >= 0).sum()) if isinstance(data, Source) else None


def sample_images(data: Source | Stream, few: int, seed: int, every_class: bool) -> Source | Stream:
    """Of a source, `few` labelled items drawn by the seed.

    The items of a class are spread evenly over 0..1 in a drawn order, so that a cut anywhere has every class in its share.
    With `every_class`, the first of each comes before all others: to fit to, a rare class must be there.
    """
    if isinstance(data, Stream):
        return data
    targets = data.targets()
    drawn = permute(np.arange(len(targets), dtype=np.int64), len(targets), seed, 0) if len(targets) else targets
    drawn = drawn[targets[drawn] >= 0]
    of_class = np.argsort(targets[drawn], kind="stable")  # class by class, each in the drawn order
    counts = np.bincount(targets[drawn], minlength=1)
    place = np.arange(len(drawn)) - np.repeat(np.cumsum(counts) - counts, counts)
    spread = np.empty(len(drawn))
    spread[of_class] = (place + 0.5) / np.repeat(counts, counts)
    if every_class:
        spread[of_class[place == 0]] = 0
    chosen: NDArray[np.int64] = drawn[np.argsort(spread, kind="stable")[:few]]
    return data.subset(np.sort(chosen))


def _l2s(n: int, width: int, classes: int) -> tuple[float, ...]:
    return L2S if n * min(n, width) * classes * len(L2S) <= _CHOOSING else L2S[::4]


# Features --------------------------------------------------------------------------------------------------------------


def _run(
    runner: Runner, data: Source | Stream, preprocess: Preprocess, few: int, advance: Advance, reading: Mapping[str, Any]
) -> tuple[Tensor, list[tuple[int, ...]], int]:
    """Features and labels of the first images that have labels and can be read, and how many could not be."""
    loader = Loader(data, preprocess, min(_BATCH, default_batch_size(preprocess, runner.device)), **reading)
    rows: list[Tensor] = []
    labels: list[tuple[int, ...]] = []
    with contextlib.closing(loader.once()) as batches:  # type: ignore[type-var]  # an iterator that is a generator
        for batch in batches:
            kept = [row for row, own in enumerate(batch.labels) if own][: few - len(labels)]
            rows.append(runner.run(batch.images).features[kept])
            labels += [batch.labels[row] for row in kept]
            advance(len(kept))
            if len(labels) == few:
                break
    if not labels:
        bad = f"; {len(loader.bad):,} could not be read" if loader.bad else ""
        raise VitreousError(f"{data.where} {data.split}: no image with a label{bad}; see `vitreous doctor`")
    return torch.cat(rows), labels, len(loader.bad)
