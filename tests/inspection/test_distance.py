"""Attention distance: exact where attention was made by hand, equal to loops in numpy on models of every kind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from known_attention import (
    ALL_ALIKE,
    KINDS,
    Array,
    first_token,
    hybrid,
    itself,
    looking,
    one_left,
    one_up,
    pictures,
    run_by_numpy,
    small,
)

from vitreous.core.errors import VitreousError
from vitreous.inspection.distance import attention_distance, compute_distance, pixels_apart
from vitreous.models.build import create


def by_loops(attention: Array, grid: tuple[int, int], step: tuple[int, int], prefix: int) -> Array:
    """(L, H): mean over images of the mean over queries of the sum over keys, one term at a time."""
    layers, images, heads, n, _ = attention.shape
    found = np.zeros((layers, heads))
    for layer in range(layers):
        for head in range(heads):
            for image in range(images):
                for i in range(prefix, n):
                    for j in range(prefix, n):
                        down = ((i - prefix) // grid[1] - (j - prefix) // grid[1]) * step[0]
                        across = ((i - prefix) % grid[1] - (j - prefix) % grid[1]) * step[1]
                        found[layer, head] += attention[layer, image, head, i, j] * math.hypot(down, across)
    return found / images / (n - prefix)


@pytest.mark.parametrize("kind", KINDS)
def test_against_loops(kind: str) -> None:
    model = small(**KINDS[kind])
    images = pictures(model)
    attention, _ = run_by_numpy(model, images)
    step = model.config.patch
    expected = by_loops(attention, (8 // step[0], 12 // step[1]), step, model.prefix_tokens)
    found = attention_distance(model, images)
    assert found.shape == (6 if kind == "axial" else 3, 3)
    assert found.dtype == np.float64
    assert np.allclose(found, expected, rtol=1e-4)
    assert len(np.unique(found.round(4))) == found.size  # all different, or less was compared than it seems


def test_a_hybrids_tokens_are_as_far_apart_as_its_trunk_makes_them() -> None:
    model = hybrid()
    images = pictures(model)
    expected = by_loops(run_by_numpy(model, images)[0], (2, 3), (32, 32), 1)
    assert np.allclose(attention_distance(model, images), expected, rtol=1e-4)


def test_images_of_another_size_than_the_models() -> None:
    model, images = small(positions="none", position_prefix=0), torch.randn(1, 3, 16, 8)
    expected = by_loops(run_by_numpy(model, images)[0], (4, 2), (4, 4), 1)
    assert np.allclose(attention_distance(model, images), expected, rtol=1e-4)


@pytest.mark.parametrize("leading", [dict(pool="gap"), dict(), dict(registers=3)])
def test_exact_where_attention_is_known(leading: dict[str, Any]) -> None:
    """Each head of each layer does something else, so a mistaken order would show too."""
    model = looking([itself, one_left, one_up], [ALL_ALIKE, itself, one_left], grid=(3, 4), patch=(6, 2), **leading)
    pairs = [math.hypot(6 * (a // 4 - b // 4), 2 * (a % 4 - b % 4)) for a in range(12) for b in range(12)]
    # Of what a patch spreads over all tokens, the leading ones' part is dropped and not given to the others.
    uniform = np.mean(pairs) * 12 / (12 + model.prefix_tokens)
    left, up = 2 * 3 / 4, 6 * 2 / 3  # pixels of one step, for all but the patches at the edge
    assert np.allclose(attention_distance(model, pictures(model)), [[0, left, up], [uniform, 0, left]], rtol=1e-6)


def test_looking_at_the_class_token_is_no_distance() -> None:
    model = looking([first_token], grid=(2, 2))
    assert attention_distance(model, pictures(model)).tolist() == [[0.0]]


def test_the_formula_itself() -> None:
    """Two patches 16 pixels apart: the first gives 0.25 to the other and 0.5 to the class token, the second 0.1."""
    attention = torch.tensor([[[[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 0.1, 0.9]]]])
    assert compute_distance(attention, (1, 2), (8, 16), 1).item() == pytest.approx((0.25 + 0.1) * 16 / 2)
    assert compute_distance(attention, (2, 1), (8, 16), 1).item() == pytest.approx((0.25 + 0.1) * 8 / 2)
    assert compute_distance(attention.to(torch.bfloat16), (1, 2), (8, 16), 1).dtype == torch.float32


def test_pixels_apart() -> None:
    assert torch.allclose(
        pixels_apart((2, 2), (3, 4)), torch.tensor([[0, 4, 3, 5], [4, 0, 5, 3], [3, 5, 0, 4], [5, 3, 4, 0.0]])
    )


def test_many_patches_lose_no_precision() -> None:
    """A sum over a million terms, in float32: as good as numpy's in float64."""
    attention = torch.rand(1, 1, 1024, 1024).softmax(dim=-1)
    apart = pixels_apart((32, 32), (7, 7)).double().numpy()
    expected = (attention[0, 0].double().numpy() * apart).sum() / 1024
    assert compute_distance(attention, (32, 32), (7, 7), 0).item() == pytest.approx(expected, rel=1e-6)


def test_the_mean_over_images_and_the_size_of_batches() -> None:
    model = small()
    images = pictures(model, 5)
    one_by_one = np.mean([attention_distance(model, images[i : i + 1]) for i in range(5)], axis=0)
    for batch_size in (1, 2, 5, 8):
        assert np.allclose(attention_distance(model, images, batch_size), one_by_one, rtol=1e-5)


def test_faults() -> None:
    with pytest.raises(VitreousError, match="no attention"):
        attention_distance(create("R26x1", classes=2, image_size=32), torch.randn(1, 3, 32, 32))
    model = small()
    for wrong in (torch.randn(0, 3, 8, 12), torch.randn(3, 8, 12), torch.zeros(1, 3, 8, 12, dtype=torch.uint8), "cat.jpg"):
        with pytest.raises(VitreousError, match="float tensor"):
            attention_distance(model, wrong)
    with pytest.raises(VitreousError, match="not a multiple"):
        attention_distance(model, torch.randn(1, 3, 9, 12))
    with pytest.raises(VitreousError, match="3 channels"):
        attention_distance(model, torch.randn(1, 1, 8, 12))
    with pytest.raises(VitreousError, match="batch_size"):
        attention_distance(model, pictures(model), batch_size=0)
