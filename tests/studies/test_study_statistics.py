"""Statistics over seeds, against scipy and values by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitreous.studies.statistics import bootstrap, equivalence_p, holm, paired_t, student_quantile, student_tail

EFFECTS = [
    [1.2, 0.4],
    [0.5, 1.5, -0.25, 2.0, 1.0, 0.75],
    list(np.random.default_rng(0).normal(0.1, 0.8, 16)),
]


@given(st.floats(-40, 40), st.integers(1, 60))
def test_the_tail_of_students_t(t: float, freedom: int) -> None:
    assert student_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)


@given(st.floats(0.6, 0.999), st.integers(1, 60))
def test_the_quantile_of_students_t(probability: float, freedom: int) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-8)


@pytest.mark.parametrize("effects", EFFECTS, ids=["two", "six", "sixteen"])
def test_paired_t(effects: list[float]) -> None:
    found, expected = paired_t(effects), stats.ttest_1samp(effects, 0)
    interval = expected.confidence_interval(0.95)
    assert found.effect == pytest.approx(np.mean(effects))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(expected.pvalue)
    assert found.seeds == len(effects)


@pytest.mark.parametrize("effects", EFFECTS, ids=["two", "six", "sixteen"])
def test_equivalence_is_two_one_sided_tests(effects: list[float]) -> None:
    below = stats.ttest_1samp(effects, -1, alternative="greater").pvalue
    above = stats.ttest_1samp(effects, 1, alternative="less").pvalue
    assert equivalence_p(effects, 1.0) == pytest.approx(max(below, above))


def test_without_variance_or_without_a_second_seed() -> None:
    assert paired_t([2.0, 2.0]) == (2.0, 2.0, 2.0, 0.0, 2)
    assert paired_t([0.0, 0.0]) == (0.0, 0.0, 0.0, 1.0, 2)
    assert paired_t([2.0]) == (2.0, -math.inf, math.inf, 1.0, 1)
    assert equivalence_p([0.5, 0.5], 1.0) == 0.0
    assert equivalence_p([1.0, 1.0], 1.0) == 1.0
    assert equivalence_p([0.0], 1.0) == 1.0


def test_holm_by_hand() -> None:
    """Eleven claims, of which three were run: 11 p, 10 p and 9 p, never falling and at most 1."""
    assert holm({"a": 0.004, "b": 0.001, "c": 0.2}, 11) == pytest.approx({"b": 0.011, "a": 0.04, "c": 1.0})
    assert holm({"a": 0.0045, "b": 0.0044}, 11) == pytest.approx({"b": 0.0484, "a": 0.0484})
    assert holm({"a": 0.01, "b": 0.04}, 2) == pytest.approx({"a": 0.02, "b": 0.04})


def test_the_bootstrap_covers_seeds_and_images() -> None:
    random = np.random.default_rng(1)
    differences = random.normal(3, 1, (6, 1)) + random.normal(0, 10, (1, 400))
    low, high = bootstrap(differences)
    # The standard error by the components of variance.
    error = math.hypot(differences.mean(1).std() / math.sqrt(6), differences.mean(0).std() / math.sqrt(400))
    assert low < differences.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.25)
    assert bootstrap(differences) == (low, high)
    assert bootstrap(np.full((3, 5), 2.0)) == (2.0, 2.0)
