from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitreous.core.errors import VitreousError
from vitreous.data.sampling import balanced_items, derive_key, example_items, item_generator, permute


@given(st.integers(1, 5000), st.integers(0, 2**63), st.integers(0, 100))
def test_a_permutation(count: int, seed: int, epoch: int) -> None:
    assert sorted(permute(np.arange(count), count, seed, epoch).tolist()) == list(range(count))


@pytest.mark.parametrize("count", [5, 12, 40])
def test_every_place_is_equally_likely(count: int) -> None:
    """Where item i lands over many epochs: uniform, by chi-square, for all i at once; and neighbours are independent."""
    epochs = 6000
    landed = np.array([permute(np.arange(count), count, 0, epoch) for epoch in range(epochs)])
    table = np.array([np.bincount(landed[:, i], minlength=count) for i in range(count)])
    expected = epochs / count
    statistic = ((table - expected) ** 2 / expected).sum() * (count - 1) / count  # rows and columns sum to the same
    assert stats.chi2.sf(statistic, (count - 1) ** 2) > 1e-3
    after = np.bincount((landed[:, 1] - landed[:, 0]) % count, minlength=count)[1:]
    assert stats.chisquare(after).pvalue > 1e-3


def test_large_orders_look_random() -> None:
    order = permute(np.arange(100_000), 100_000, 1, 0)
    assert abs(stats.spearmanr(np.arange(100_000), order).statistic) < 0.02
    assert abs(stats.spearmanr(order[:-1], order[1:]).statistic) < 0.02


def test_the_order_never_changes() -> None:
    """Resuming a run with a newer version needs these very numbers."""
    assert permute(np.arange(10), 10, 0, 0).tolist() == [1, 6, 5, 8, 9, 3, 7, 4, 2, 0]
    assert permute(np.arange(10**12, 10**12 + 2), 10**12 + 7, 5, 2).tolist() == [235910293623, 806851025387]
    assert derive_key("order", 0, 0, 0) == 2252961693037531455
    assert [round(item_generator(0, 0, "a/1.jpg").random(), 12) for _ in range(2)] == [0.464172843385] * 2


def test_epochs_follow_without_a_gap() -> None:
    items, epochs = example_items(np.arange(7 * 5), 10, seed=3)
    for epoch in range(3):
        assert sorted(items[epochs == epoch].tolist()) == list(range(10))
    assert len({tuple(items[epochs == epoch]) for epoch in range(3)}) == 3
    again = np.concatenate([example_items(np.arange(start, start + 5), 10, seed=3)[0] for start in range(0, 35, 5)])
    assert np.array_equal(items, again)


def test_nothing_to_order() -> None:
    with pytest.raises(VitreousError, match="no items"):
        example_items(np.arange(5), 0, 0)


def test_another_process_agrees() -> None:
    code = "from vitreous.data.sampling import *; import numpy as np; print(permute(np.arange(50), 50, 9, 4).tolist())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(permute(np.arange(50), 50, 9, 4).tolist())


def test_balanced_batches_have_every_class_equally_often_and_each_class_goes_through_its_items() -> None:
    targets = np.array([0] * 20 + [-1] + [1] * 3 + [3] * 7)  # class 2 has no images, one image no label
    items, passes = balanced_items(np.arange(3 * 40), targets, 5)
    assert np.array_equal(np.bincount(targets[items]), [40, 40, 0, 40])
    for step in range(40):  # one of each class, in varying order
        assert sorted(targets[items[3 * step : 3 * step + 3]]) == [0, 1, 3]
    assert len({tuple(targets[items[3 * step : 3 * step + 3]]) for step in range(40)}) > 3
    for label, count in ((0, 20), (1, 3), (3, 7)):
        own, turn = items[targets[items] == label], passes[targets[items] == label]
        assert np.array_equal(turn, np.arange(40) // count)  # so that augmentation differs from pass to pass
        for number in range(40 // count):
            assert sorted(own[turn == number]) == sorted(np.flatnonzero(targets == label))


def test_a_balanced_order_is_a_function_of_seed_and_number_alone() -> None:
    targets = np.random.default_rng(0).integers(0, 4, 50)
    whole = balanced_items(np.arange(200), targets, 1)[0]
    assert np.array_equal(whole[117:133], balanced_items(np.arange(117, 133), targets, 1)[0])
    assert np.array_equal(whole[1::2], balanced_items(np.arange(1, 200, 2), targets, 1)[0])  # one of two processes
    assert not np.array_equal(whole, balanced_items(np.arange(200), targets, 2)[0])
    with pytest.raises(VitreousError, match="needs labelled images"):
        balanced_items(np.arange(2), np.array([-1, -1]), 0)
