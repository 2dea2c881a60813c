"""What single heads see, and rollout: exact where attention is known, equal to numpy's elsewhere."""

from __future__ import annotations

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
    last_patch,
    looking,
    one_left,
    one_up,
    pictures,
    run_by_numpy,
    small,
)

from vitreous.core.errors import VitreousError
from vitreous.inspection.attention_rollout import compute_rollout, rollout
from vitreous.inspection.figures import plot_attention
from vitreous.inspection.head_view import attention_by_head, class_token_attention
from vitreous.models.build import create

TOKEN_IS_READ = {"token", "token+mean"}


def multiplied(attention_LHNN: Array) -> Array:
    """R of one image."""
    product = np.eye(attention_LHNN.shape[-1])
    for layer in attention_LHNN:
        mixed = layer.mean(axis=0) + np.eye(len(product))
        product = (mixed / mixed.sum(axis=1, keepdims=True)) @ product
    return product


def read(model: Any, product: Array, probe: Array | None) -> Array:
    token, mean = product[0], product[model.prefix_tokens :].mean(axis=0)
    if probe is not None:
        return probe @ product
    if model.distillation_head is not None:
        return product[:2].mean(axis=0)
    return {"token": token, "gap": mean, "token+mean": (token + mean) / 2}[model.config.pool]


def probe_of(model: Any, tokens_BND: Array) -> Array:
    """Where the probe of an attention pooling looks, heads averaged, in numpy."""
    w = {key: value.detach().double().numpy() for key, value in model.state_dict().items()}
    x = tokens_BND
    if not model.config.norm_after_pool:
        centred = x - x.mean(-1, keepdims=True)
        x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + model.config.norm_eps) * w["norm.weight"] + w["norm.bias"]
    width, heads = model.config.width, model.config.heads
    size = width // heads
    q = w["pool.probe"][0, 0] @ w["pool.query.weight"].T + w["pool.query.bias"]
    k = x @ w["pool.key_value.weight"][:width].T + w["pool.key_value.bias"][:width]
    found = []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        powers = np.exp(k[..., own] @ q[own] / np.sqrt(size))
        found.append(powers / powers.sum(-1, keepdims=True))
    return np.mean(found, axis=0)


@pytest.mark.parametrize("kind", [*KINDS, "hybrid", "probe before the norm"])
def test_against_numpy(kind: str) -> None:
    kinds = {**KINDS, "probe before the norm": dict(pool="map", norm_after_pool=True)}
    model = hybrid() if kind == "hybrid" else small(**kinds[kind])
    images, prefix = pictures(model), model.prefix_tokens
    attention, tokens = run_by_numpy(model, images)
    grid = (2, 6) if kind == "patches not square" else (2, 3)

    looks = attention[:, :, :, 0] if model.config.pool in TOKEN_IS_READ else attention[:, :, :, prefix:].mean(axis=3)
    expected = looks[..., prefix:].reshape(*looks.shape[:3], *grid)
    found = class_token_attention(model, images)
    assert found.shape == expected.shape
    assert np.allclose(found, expected, atol=1e-5)

    probes = probe_of(model, tokens[-1]) if model.config.pool == "map" else [None, None]
    expected = [read(model, multiplied(attention[:, image]), probe)[prefix:] for image, probe in enumerate(probes)]
    rolled = compute_rollout(model, images)
    assert rolled.shape == (2, *grid)
    assert np.allclose(rolled.flatten(1), expected, atol=1e-5)
    model.lean = True
    assert torch.equal(compute_rollout(model, images), rolled)
    assert torch.equal(class_token_attention(model, images), found)


def test_each_head_where_it_was_told_to_look() -> None:
    model = looking([last_patch, itself], [first_token, ALL_ALIKE], grid=(2, 2))
    found = class_token_attention(model, pictures(model, 1))[:, 0]
    assert found[0, 0].tolist() == [[0, 0], [0, 1]]
    assert found[0, 1].tolist() == [[0, 0], [0, 0]], "at itself: nothing of the patches"
    assert found[1, 0].tolist() == [[0, 0], [0, 0]]
    assert torch.allclose(found[1, 1], torch.full((2, 2), 0.2)), "a fifth to each of five tokens, and no more than that"


def test_patches_that_look_left() -> None:
    model = looking([one_left, one_up], grid=(2, 3), pool="gap")
    left, up = class_token_attention(model, pictures(model, 1))[0, 0]
    assert torch.allclose(left, torch.tensor([[2, 1, 0], [2, 1, 0]]) / 6), "the edge is seen by itself and its neighbour"
    assert torch.allclose(up, torch.tensor([[2, 2, 2], [0, 0, 0]]) / 6)


def test_rollout_of_known_attention() -> None:
    images = pictures(looking([itself]))
    still = looking([itself], [itself], [itself])
    assert not rollout(still, images).any(), "the class token has looked at itself alone"
    pooled = looking([itself], [itself], pool="gap")
    assert np.allclose(rollout(pooled, images), 1 / 6)

    for layers in (1, 2, 3):
        assert np.allclose(rollout(looking(*[[ALL_ALIKE]] * layers), images), (1 - 0.5**layers) / 7)

    # Half stays, half goes one to the left, where the edge holds it: of L steps each patch takes a binomial number.
    step = np.kron(np.eye(2), (np.eye(3) + np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]])) / 2)
    for layers in (1, 2, 3):
        walk = rollout(looking(*[[one_left]] * layers, pool="gap"), images)
        assert np.allclose(walk, np.linalg.matrix_power(step, layers).mean(axis=0).reshape(2, 3))
    assert np.allclose(walk[0, 0], [(1 + 7 / 8 + 4 / 8) / 6, (1 / 8 + 3 / 8) / 6, 1 / 8 / 6])


def test_faults() -> None:
    resnet = create("R26x1", classes=2, image_size=32)
    for function in (class_token_attention, compute_rollout):
        with pytest.raises(VitreousError, match="no attention"):
            function(resnet, torch.randn(1, 3, 32, 32))
        with pytest.raises(VitreousError, match="not a multiple"):
            function(small(), torch.randn(1, 3, 9, 12))


def test_images_of_any_kind_and_number() -> None:
    """Images first, the same whatever the batches; and drawn as they come."""
    model = small(**KINDS["registers"])
    images = pictures(model, 3)
    found = attention_by_head(model, images, batch_size=2)
    assert np.allclose(found, class_token_attention(model, images).transpose(0, 1).numpy(), atol=1e-6)
    assert plot_attention(np.full((24, 36, 3), 90, np.uint8), found[0]).axes


def test_a_path_is_no_model() -> None:
    with pytest.raises(VitreousError, match=r"a str is no model to look into; load the checkpoint first"):
        attention_by_head("runs/pets", "cat.jpg")  # type: ignore[arg-type]
