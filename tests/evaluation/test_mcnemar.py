"""Two models on the same images: scipy's exact test, Newcombe's published figures, and how often the interval is right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from vitreous.evaluation.intervals import bootstrap
from vitreous.evaluation.mcnemar import PairedComparison, paired_comparison


@pytest.mark.parametrize(("first", "second"), [(0, 1), (0, 7), (3, 3), (4, 5), (2, 14), (30, 58), (1200, 1000), (9000, 9400)])
def test_mcnemar_is_scipys(first: int, second: int) -> None:
    expected = stats.binomtest(first, first + second).pvalue
    assert PairedComparison(50, first, second, 5).p == pytest.approx(expected, rel=1e-8)
    assert PairedComparison(50, second, first, 5).p == pytest.approx(expected, rel=1e-8)


def test_newcombes_published_interval() -> None:
    """An example of Newcombe 1998, method 10: of 50, both 36, one alone 12, the other alone 2."""
    found = PairedComparison(both=36, first=2, second=12, neither=0)
    assert found.difference == pytest.approx(0.20)
    assert found.interval == pytest.approx((0.0569, 0.3404), abs=5e-5)
    mirrored = PairedComparison(both=36, first=12, second=2, neither=0)
    assert mirrored.interval == pytest.approx((-0.3404, -0.0569), abs=5e-5)


def test_the_paired_bootstrap_agrees() -> None:
    found = PairedComparison(both=700, first=60, second=110, neither=130)
    kinds = np.array([60, 110, 830])
    assert found.interval == pytest.approx(bootstrap(kinds, lambda drawn: (drawn[:, 1] - drawn[:, 0]) / 1000), abs=0.004)


def test_coverage() -> None:
    """Of 500 experiments with 120 images, the interval holds the true difference of 0.06 about 95 times in a hundred."""
    rng = np.random.default_rng(2)
    held = []
    for both, first, second, neither in rng.multinomial(120, (0.7, 0.07, 0.13, 0.1), 500).tolist():
        low, high = PairedComparison(both, first, second, neither).interval
        held.append(low <= 0.06 <= high)
    assert 0.93 <= np.mean(held) <= 0.99


def test_counting_and_sentences() -> None:
    first = np.array([True, True, False, False, True])
    second = np.array([True, False, True, False, True])
    assert paired_comparison(first, second) == PairedComparison(both=2, first=1, second=1, neither=1)
    assert paired_comparison(first, first).sentence() == "A and B get the same 3 of 5 images right"
    assert paired_comparison(first, first).p == 1.0
    better = PairedComparison(both=800, first=20, second=67, neither=113)
    assert better.sentence("old", "new").startswith("new is better than old by 4.7 points (2.9 to 6.6), p = ")
    assert better.sentence("old", "new").endswith("only one of them is right on 87 of 1,000 images")
    worse = PairedComparison(both=800, first=67, second=20, neither=113)
    assert worse.sentence("old", "new").startswith("old is better than new by 4.7 points (2.9 to 6.6), p = ")
    # Also a difference that may be chance has a direction.
    for first, second, ahead in ((40, 43, "B is ahead of A"), (43, 40, "A is ahead of B")):
        unsure = PairedComparison(800, first, second, 117).sentence()
        assert unsure.startswith(
            f"{ahead} by 0.3 points (-1.5 to 2.1), p = 0.83, which may be chance; only one of them is right"
        )
    assert PairedComparison(800, 40, 40, 120).sentence().startswith("A and B get equally many right (difference -1.")
    assert PairedComparison(800, 40, 43, 117).as_dict()["second_only"] == 43
