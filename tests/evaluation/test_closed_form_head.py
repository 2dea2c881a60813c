"""The closed-form head against scikit-learn, and its temperature against a search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, special
from sklearn import linear_model

from vitreous.evaluation.closed_form_head import fit_head, leave_one_out_temperature
from vitreous.evaluation.ridge import Ridge
from vitreous.inference.features import Features


def made(count: int = 90, classes: int = 4, noise: float = 1.5, labels: int = 1) -> Features:
    rng = np.random.default_rng(0)
    targets = np.arange(count) % classes
    means = np.random.default_rng(9).normal(size=(classes, 12)) * 3 + 50  # far from 0: the mean has to fold in exactly
    values = (means[targets] + noise * rng.normal(size=(count, 12))).astype(np.float32)
    own = tuple(tuple(sorted({int(t), (int(t) + i) % classes})) if labels > 1 else (int(t),) for i, t in enumerate(targets))
    return Features(values, own, tuple(map(str, range(count))), np.arange(count), tuple("abcdef"[:classes]))


@pytest.mark.parametrize("count", [8, 90])  # fewer images than features, and more
def test_the_layer_is_scikit_learns_ridge_divided_by_the_temperature(count: int) -> None:
    found = made(count)
    head = fit_head(found, 64.0)
    x = found.values.astype(np.float64)
    standardised = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5)
    y = 2 * np.eye(4)[found.targets()] - 1
    with_constant = np.hstack([standardised, np.full((count, 1), 100.0)])
    scores = linear_model.Ridge(alpha=64.0, fit_intercept=False).fit(with_constant, y).predict(with_constant)
    logits = head.logits(torch.from_numpy(found.values)).numpy()
    assert logits * head.temperature == pytest.approx(scores, abs=2e-5)
    assert (head.weight.shape, head.bias.shape, head.l2, head.sigmoid) == ((4, 12), (4,), 64.0, False)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_the_temperature_has_the_lowest_cross_entropy(sigmoid: bool) -> None:
    found = made(noise=4.0, labels=2 if sigmoid else 1)
    ridge = Ridge(torch.from_numpy(found.values), found.labels, 4)
    scores = ridge.left_out(16.0)
    targets = np.zeros((90, 4))
    for row, own in enumerate(found.labels):
        targets[row, list(own)] = 1.0
    smooth = (90 * targets + (0.5 if sigmoid else 0.25)) / 91

    def cross_entropy(log_temperature: float) -> float:
        logits = scores.numpy() / np.exp(log_temperature)
        if sigmoid:
            return -float((smooth * special.log_expit(logits) + (1 - smooth) * special.log_expit(-logits)).sum())
        return -float((smooth * special.log_softmax(logits, axis=1)).sum())

    best = float(np.exp(optimize.minimize_scalar(cross_entropy, bounds=(-8, 8), method="bounded").x))
    assert leave_one_out_temperature(scores, found.labels, sigmoid=sigmoid) == pytest.approx(best, rel=1e-3)
    assert fit_head(found, 16.0).sigmoid is sigmoid


def test_without_a_mistake_the_head_is_still_not_certain() -> None:
    scores, labels = torch.tensor([[1.0, -1.0], [-1.0, 1.0]] * 10, dtype=torch.float64), ((0,), (1,)) * 10
    temperature = leave_one_out_temperature(scores, labels)
    wrong = float((scores[0] / temperature).softmax(dim=0)[1])
    assert wrong == pytest.approx(0.5 / 21)  # one more image, which may be of either class


def test_the_only_image_of_a_class_takes_no_part() -> None:
    rng = np.random.default_rng(0)
    scores, labels = torch.tensor(rng.normal(size=(20, 3))), tuple((row % 2,) for row in range(20))
    alone = torch.cat([scores, torch.tensor([[9.0, 0.0, -9.0]], dtype=torch.float64)])
    assert leave_one_out_temperature(alone, (*labels, (2,))) == leave_one_out_temperature(scores, labels)
    assert leave_one_out_temperature(scores[:2], ((0,), (1,))) == 1.0
