"""Intervals: against the equation that defines them, and by how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from vitreous.evaluation.intervals import bootstrap, mean_recall_interval, share_interval, wilson


@pytest.mark.parametrize(("right", "n"), [(0, 7), (7, 7), (1, 10), (81, 263), (499, 500), (38_000, 50_000)])
def test_wilson_is_scipys(right: int, n: int) -> None:
    expected = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert wilson(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert share_interval(right, n) == wilson(right / n, n)


def test_nothing_is_known_of_nothing() -> None:
    assert wilson(0.0, 0) == (0.0, 1.0) == share_interval(0, 0, "bootstrap")


def test_the_bootstrap_of_a_share_is_the_binomial_distribution() -> None:
    low, high = share_interval(180, 300, "bootstrap")
    assert low == pytest.approx(stats.binom.ppf(0.025, 300, 0.6) / 300, abs=2.1 / 300)
    assert high == pytest.approx(stats.binom.ppf(0.975, 300, 0.6) / 300, abs=2.1 / 300)
    assert share_interval(180, 300, "bootstrap", seed=1) == share_interval(180, 300, "bootstrap", seed=1)
    draws = {share_interval(1800, 3000, "bootstrap", seed=seed) for seed in range(6)}
    assert len(draws) > 1  # the seed counts


def test_kinds_are_as_good_as_images() -> None:
    """The mean recall of three uneven classes: drawing counts of kinds against drawing the images themselves."""
    right, there = np.array([80, 9, 2]), np.array([100, 12, 5])
    labels = np.repeat(np.arange(3), there)
    hit = np.concatenate([np.arange(n) < r for r, n in zip(right, there, strict=True)])
    rng = np.random.default_rng(5)
    means = []
    for _ in range(2000):
        drawn = rng.integers(0, len(labels), len(labels))
        means.append(np.mean([hit[drawn][labels[drawn] == k].mean() for k in range(3) if (labels[drawn] == k).any()]))
    assert mean_recall_interval(right, there) == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=0.02)
    assert mean_recall_interval(np.array([80, 9, 2, 0]), np.array([100, 12, 5, 0])) == mean_recall_interval(right, there)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = np.array([30, 50, 20])
    whole = bootstrap(kinds, lambda drawn: drawn[:, 0] / 100)
    monkeypatch.setattr("vitreous.evaluation.intervals._ENTRIES", 3 * 7)
    assert bootstrap(kinds, lambda drawn: drawn[:, 0] / 100) == whole


@pytest.mark.parametrize(("method", "least"), [("wilson", 0.93), ("bootstrap", 0.90)])
def test_coverage(method: str, least: float) -> None:
    """Of 400 experiments with 80 images, the interval holds the true 0.85 about 95 times in a hundred."""
    rng = np.random.default_rng(0)
    ends = [share_interval(int(right), 80, method, seed=k) for k, right in enumerate(rng.binomial(80, 0.85, 400))]  # type: ignore[arg-type]
    held = np.mean([low <= 0.85 <= high for low, high in ends])
    assert least <= held <= 0.985
