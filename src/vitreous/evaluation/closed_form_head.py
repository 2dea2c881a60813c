"""A linear head in closed form: ridge regression on frozen features, with a leave-one-out temperature folded into its weights.

    logits = s(x) / T,   s(x) = [(x - mean) / std, 100] W   (see `ridge`)

Dividing by `std`, subtracting `mean` and dividing by T are all linear, so they go into the weight and the bias of an ordinary
layer: loading or exporting the head needs nothing else.

T is the temperature [Guo et al. 2017] with the lowest cross-entropy of what leaving each example out in turn predicts for it:
scores of examples that the fit has seen would be far too sure. Their number n is finite, so the targets count one example more,
which may be of any class [after Platt 1999]: where all n are right, T would be 0 otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.evaluation.fewshot import Choice, choose_l2
from vitreous.evaluation.ridge import BIAS, Ridge
from vitreous.inference.features import Features
from vitreous.inference.predictions import class_probabilities

_COLDEST, _HOTTEST = 2.0**-20, 2.0**10  # temperatures that are tried; scores are about -1 and 1
_HALVINGS = 60  # of the interval between their logarithms: more than float64 can tell apart


@dataclass(frozen=True, eq=False)
class ClosedFormHead:
    """A fit, as a linear layer on the features as they are."""

    weight: Tensor  # (C, D), float32
    bias: Tensor  # (C,)
    l2: float
    temperature: float
    left_out: float  # accuracy on each training image, by the fit to all others
    truth: Tensor  # (n,) probability of the true class of each training image, by the fit to all others
    sigmoid: bool  # images have several labels: each class has a probability of its own

    def logits(self, features: Tensor) -> Tensor:
        return features @ self.weight.T + self.bias


def fit_head(found: Features, l2: Choice = "leave-one-out", sigmoid: bool | None = None) -> ClosedFormHead:
    """`sigmoid` outputs, where it is not said, are for images with several labels."""
    ridge = Ridge(torch.from_numpy(found.values), found.labels, len(found.classes))
    l2 = choose_l2(ridge, found.labels, l2)
    sigmoid = any(len(set(own)) > 1 for own in found.labels) if sigmoid is None else sigmoid
    scores = ridge.left_out(l2)
    temperature = leave_one_out_temperature(scores, found.labels, sigmoid=sigmoid)
    shares = class_probabilities(scores / temperature, sigmoid=sigmoid)
    truth = torch.stack([shares[row, list(own)].max() for row, own in enumerate(found.labels)])
    weight, bias = linear_layer(ridge, l2)
    return ClosedFormHead(
        (weight / temperature).float(),
        (bias / temperature).float(),
        l2,
        temperature,
        ridge.leave_one_out([l2])[0],
        truth,
        sigmoid,
    )


def linear_layer(ridge: Ridge, l2: float) -> tuple[Tensor, Tensor]:
    """Weight (C, D) and bias (C,) that give the fit's scores of features as they are; float64."""
    weights = ridge.weights(l2)
    weight = weights[:-1].T / ridge.std
    return weight, BIAS * weights[-1] - weight @ ridge.mean


def leave_one_out_temperature(scores: Tensor, labels: Sequence[tuple[int, ...]], *, sigmoid: bool = False) -> float:
    """T for the scores (n, C) of examples that were left out; with softmax outputs, or sigmoid ones of each class.

    An example that is the only one of its class takes no part: nothing was left that could have named it. The cross-entropy
    is convex in 1/T, so that its derivative is 0 in one place, which is found by halving.
    """
    counts = Counter(label for own in labels for label in set(own))
    rows = [row for row, own in enumerate(labels) if all(counts[label] > 1 for label in own)]
    if not rows:
        return 1.0
    scores, n = scores[rows], len(rows)
    targets = torch.zeros_like(scores)
    for place, row in enumerate(rows):
        targets[place, list(labels[row])] = 1.0
    if not sigmoid:
        targets /= targets.sum(dim=1, keepdim=True)
    targets = (n * targets + (0.5 if sigmoid else 1 / scores.shape[1])) / (n + 1)
    low, high = (torch.tensor(1 / temperature, dtype=torch.float64).log2() for temperature in (_HOTTEST, _COLDEST))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        scaled = scores * middle.exp2()
        probabilities = scaled.sigmoid() if sigmoid else scaled.softmax(dim=1)
        if ((probabilities - targets) * scores).sum() > 0:  # the derivative by 1/T: too sure
            high = middle
        else:
            low = middle
    return float((-(low + high) / 2).exp2())
