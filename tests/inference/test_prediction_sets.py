"""Prediction sets: finite-sample coverage against the formula, thresholds and sets against plain loops, and refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitreous
from vitreous.core.errors import VitreousError
from vitreous.inference import prediction_sets
from vitreous.inference.prediction_sets import (
    PredictionSets,
    build_prediction_sets,
    conformal_rank,
    conformal_threshold,
    depends_on,
    summarise_scores,
)

from conftest import random_checkpoint


def order_statistic(scores: np.ndarray, coverage: float) -> tuple[float, float]:
    """The k-th smallest score and the next, by a loop that removes the smallest ones."""
    left = scores.tolist()
    for _ in range(math.ceil(Fraction(str(coverage)) * (len(scores) + 1)) - 1):
        left.remove(min(left))
    return sorted(left)[0], sorted(left)[min(1, len(left) - 1)]


@given(n=st.integers(2, 400), percent=st.integers(1, 99))
def test_the_rank_is_the_ceiling_in_exact_arithmetic(n: int, percent: int) -> None:
    assert conformal_rank(n, percent / 100) == math.ceil(Fraction(n + 1) * Fraction(percent, 100))


@pytest.mark.parametrize("coverage", [0.5, 0.75, 0.9, 0.95])
@pytest.mark.parametrize("n", [30, 97, 500])
def test_the_threshold_is_the_order_statistic_and_mapie_is_within_one_rank(n: int, coverage: float) -> None:
    truth = np.random.default_rng(n).random(n)
    found = conformal_threshold(summarise_scores(truth, {}), coverage)
    exact, following = order_statistic(1 - truth, coverage)
    assert found == pytest.approx(1 - exact, abs=1e-12)
    # MAPIE's LAC score takes numpy's `higher` quantile at (n + 1) (1 - alpha) / n, which counts ranks from 0 to n - 1.
    mapie = float(np.quantile(1 - truth, (n + 1) * coverage / n, method="higher"))
    assert mapie in (pytest.approx(exact), pytest.approx(following))


@pytest.mark.parametrize(("n", "coverage"), [(19, 0.9), (50, 0.8), (99, 0.95)])
def test_coverage_of_new_scores_is_what_the_formula_promises(n: int, coverage: float) -> None:
    """Exchangeable scores: the mean over many calibrations of the share of new scores that are covered is k / (n + 1), and
    the share itself is distributed as Beta(k, n + 1 - k)."""
    rng = np.random.default_rng(0)
    k, rounds = math.ceil((n + 1) * coverage - 1e-9), 4000
    # A new uniform probability p is covered if p >= threshold, so the share covered is 1 - threshold.
    shares = np.array([1 - conformal_threshold(summarise_scores(rng.random(n), {}), coverage) for _ in range(rounds)])
    mean, variance = k / (n + 1), k * (n + 1 - k) / ((n + 1) ** 2 * (n + 2))
    assert shares.mean() == pytest.approx(mean, abs=4 * math.sqrt(variance / rounds))
    assert shares.std() == pytest.approx(math.sqrt(variance), rel=0.06)
    assert coverage <= mean < coverage + 1 / (n + 1)


def test_of_many_scores_a_thousand_are_kept_and_never_too_low_a_threshold_score() -> None:
    truth = np.random.default_rng(1).random(12_345)
    kept = summarise_scores(truth, {})
    assert len(kept["scores"]) == len(kept["ranks"]) == prediction_sets.MOST
    for coverage in (0.5, 0.9, 0.99, 0.999):
        exact = 1 - float(np.sort(1 - truth)[math.ceil(Fraction(str(coverage)) * 12_346) - 1])
        found = conformal_threshold(kept, coverage)
        assert found <= exact  # a lower probability lets more classes in
        assert found == pytest.approx(exact, abs=0.002)


@given(
    rows=st.lists(st.lists(st.floats(-20, 20, width=32), min_size=4, max_size=4), min_size=1, max_size=6),
    threshold=st.floats(0, 1),
)
def test_sets_are_those_of_a_loop(rows: list[list[float]], threshold: float) -> None:
    logits = torch.tensor(rows)
    found = PredictionSets(0.9, threshold).names(logits, "abcd")
    for own, probabilities in zip(found, logits.softmax(dim=1).tolist(), strict=True):
        inside = {
            name for name, p in zip("abcd", probabilities, strict=True) if p >= threshold - 1e-6 or p == max(probabilities)
        }
        assert set(own) == inside
        assert [*own] == sorted(own, key=lambda name: -probabilities["abcd".index(name)])


def test_too_few_images_are_refused_with_the_number_needed() -> None:
    with pytest.raises(VitreousError, match=r"--coverage 0.9: needs 9 or more images to calibrate on, and there were 8"):
        conformal_threshold(summarise_scores(np.full(8, 0.5), {}), 0.9)
    assert conformal_threshold(summarise_scores(np.linspace(0.1, 0.9, 9), {}), 0.9) == pytest.approx(0.1)


@pytest.mark.parametrize("damage", [{"n": "many"}, {"scores": []}, {"ranks": [1, 2, 3]}, {"scores": [math.nan] * 20}])
def test_a_damaged_calibration_is_refused(damage: Mapping[str, Any]) -> None:
    with pytest.raises(VitreousError, match="damaged"):
        conformal_threshold({**summarise_scores(np.linspace(0, 1, 20), {}), **damage}, 0.5)


def calibrated(**changes: Any) -> SimpleNamespace:
    clf = vitreous.Classifier(random_checkpoint("ViT-Ti/4", width=12, depth=1, heads=3, mlp=24, image_size=8, classes=3))
    about = depends_on(clf, clf.preprocess, "float32")
    own = {"model": clf.model, "preprocess": clf.preprocess, "engine": clf.engine, "sigmoid": False}
    return SimpleNamespace(**own, conformal=summarise_scores(np.linspace(0, 1, 50), about | changes))


def test_sets_need_what_was_calibrated() -> None:
    assert build_prediction_sets(calibrated(), "head", 0.9).threshold < 0.2  # type: ignore[arg-type]
    for changes, said in (
        ({"weights": "0"}, "head was calibrated with other weights; calibrate it so with `vitreous evaluate head DATA"),
        ({"preprocess": "resize(4)"}, "with preprocess resize"),
        ({"precision": "bfloat16"}, "with precision bfloat16, not float32"),
        ({"merge_tokens": 2}, "with merge_tokens 2, not 0"),
    ):
        with pytest.raises(VitreousError) as refused:
            build_prediction_sets(calibrated(**changes), "head", 0.9)  # type: ignore[arg-type]
        assert said in str(refused.value)
    with pytest.raises(VitreousError, match="must lie between 0 and 1"):
        build_prediction_sets(calibrated(), "head", 90)  # type: ignore[arg-type]
