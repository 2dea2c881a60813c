"""Mixup: the share has the distribution it claims, the sums are right, and nothing but seed and step decides."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.mixup import check_alpha, draw_beta, mixing_share, mixup, one_hot

DRAWS = 4000


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 3, 4, 5, generator=generator), one_hot([(i % 7, (i * i) % 7) for i in range(size)], 7)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 1.0, 4.0])
def test_the_share_is_a_folded_beta(alpha: float) -> None:
    shares = [mixing_share(alpha, 0, step) for step in range(DRAWS)]
    assert stats.kstest(shares, lambda share: 2 * stats.beta.cdf(share, alpha, alpha) - 1).pvalue > 0.001


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_an_unfolded_draw_is_a_beta(alpha: float) -> None:
    rng = Random(0)
    assert stats.kstest([draw_beta(alpha, rng) for _ in range(DRAWS)], stats.beta(alpha, alpha).cdf).pvalue > 0.001


@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.2, 0.5, 0.8, 1.0, 4.0])
def test_mean_and_variance_of_the_share(alpha: float) -> None:
    """Also where most of the distribution lies closer to 1 than a float can tell, which the test above cannot take."""
    drawn = stats.beta.rvs(alpha, alpha, size=400_000, random_state=0)
    folded = np.maximum(drawn, 1 - drawn)
    shares = np.array([mixing_share(alpha, 1, step) for step in range(DRAWS)])
    assert abs(shares.mean() - folded.mean()) < 4 * folded.std() / math.sqrt(DRAWS)
    assert shares.var() == pytest.approx(folded.var(), rel=0.25)


def test_the_share_is_the_same_everywhere() -> None:
    """Written down, so that another version of Python that gives other numbers is noticed."""
    assert mixing_share(0.2, 0, 0) == pytest.approx(0.9871691883935816, abs=1e-12)
    assert mixing_share(0.5, 42, 1234) == pytest.approx(0.8713528831669666, abs=1e-12)
    assert len({mixing_share(0.5, seed, step) for seed in range(20) for step in range(20)}) == 400


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False), st.integers(), st.integers(min_value=0))
def test_any_alpha_gives_a_share(alpha: float, seed: int, step: int) -> None:
    assert 0.5 <= mixing_share(alpha, seed, step) <= 1


@pytest.mark.parametrize("size", [2, 3, 8])
def test_each_image_is_mixed_with_the_one_before(size: int) -> None:
    images, targets = batch(size)
    share = mixing_share(0.8, 3, 5)
    assert 0.5 < share < 0.999
    mixed_images, mixed_targets = mixup(images, targets, 0.8, 3, 5)
    for found, given_ in ((mixed_images, images.numpy()), (mixed_targets, targets.numpy())):
        np.testing.assert_allclose(found.numpy(), share * given_ + (1 - share) * np.roll(given_, 1, axis=0), atol=1e-6)


def test_labels_are_neither_lost_nor_made() -> None:
    images, targets = batch(9)
    _, mixed = mixup(images, targets, 0.5, 0, 7)
    torch.testing.assert_close(mixed.sum(0), targets.sum(0))
    one_label = one_hot([(i % 7,) for i in range(9)], 7)
    torch.testing.assert_close(mixup(images, one_label, 0.5, 0, 7)[1].sum(1), torch.ones(9))


def test_the_batch_given_is_left_as_it_was() -> None:
    images, targets = batch(4)
    before = images.clone(), targets.clone()
    first = mixup(images, targets, 0.5, 0, 7)
    torch.testing.assert_close((images, targets), before, rtol=0, atol=0)
    torch.testing.assert_close(mixup(images, targets, 0.5, 0, 7), first, rtol=0, atol=0)
    assert not torch.equal(mixup(images, targets, 0.5, 0, 8)[0], first[0])


def test_parts_of_a_batch_share_one_share() -> None:
    """All images but the first of each part come out as if the batch had been mixed whole."""
    images, targets = batch(8)
    whole = mixup(images, targets, 0.8, 0, 3)[0]
    parts = torch.cat([mixup(images[i : i + 4], targets[i : i + 4], 0.8, 0, 3)[0] for i in (0, 4)])
    same = [bool(torch.equal(a, b)) for a, b in zip(whole, parts, strict=True)]
    assert same == [False, True, True, True, False, True, True, True]


def test_alpha_0_and_a_single_image_change_nothing() -> None:
    images, targets = batch(4)
    for found in (mixup(images, targets, 0, 0, 0), mixup(images[:1], targets[:1], 0.5, 0, 0)):
        torch.testing.assert_close(found, (images[: len(found[0])], targets[: len(found[0])]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_precision_stays(dtype: torch.dtype) -> None:
    images, targets = batch(4)
    mixed, labels = mixup(images.to(dtype), targets, 0.5, 0, 7)
    assert (mixed.dtype, labels.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(mixed.float(), mixup(images, targets, 0.5, 0, 7)[0], atol=0.03, rtol=0.02)


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf])
def test_a_wrong_alpha_is_named(alpha: float) -> None:
    with pytest.raises(VitreousError, match=r"mixup\(.*alpha must be 0"):
        check_alpha("mixup", alpha)
    with pytest.raises(VitreousError, match="alpha"):
        mixup(*batch(2), alpha, 0, 0)


def test_what_does_not_belong_together_is_refused() -> None:
    images, targets = batch(4)
    with pytest.raises(VitreousError, match="4 images but 3 targets"):
        mixup(images, targets[:3], 0.5, 0, 0)
    with pytest.raises(VitreousError, match="must be float"):
        mixup(images.to(torch.uint8), targets, 0.5, 0, 0)


def test_one_hot_is_torchs_and_takes_several_labels_or_none() -> None:
    labels = [3, 0, 2, 2]
    expected = torch.nn.functional.one_hot(torch.tensor(labels), 4).float()
    torch.testing.assert_close(one_hot([(label,) for label in labels], 4), expected)
    assert one_hot([(0, 2), (), (1, 1)], 3).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert one_hot([], 3).shape == (0, 3)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_named(label: int) -> None:
    with pytest.raises(VitreousError, match=f"label {label} of 3 classes"):
        one_hot([(0,), (label,)], 3)
