"""Attention rollout: exact on attentions made by hand, equal to numpy's on models of every kind, and small in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.inspection import attention_rollout as module
from vitreous.inspection.attention_rollout import (
    add_layer,
    add_residual,
    attention_map,
    class_activation,
    compute_rollout,
    probe_attention,
)
from vitreous.models.attention_maps import attention_maps
from vitreous.models.build import create

from conftest import randomise


def model_of(name: str = "ViT-Ti/4", **options: Any) -> Any:
    small = dict(classes=5, image_size=(8, 12), width=24, depth=3, heads=3, mlp=32)
    return randomise(create(name, **{**small, **options})).eval()


def by_numpy(model: Any, images: torch.Tensor) -> NDArray[np.float64]:
    """R (B, N, N) from attention maps, one product at a time, in float64."""
    maps = attention_maps(model, images).numpy().astype(np.float64)
    found = []
    for image in range(len(images)):
        product = np.eye(maps.shape[-1])
        for layer in maps[:, image]:
            mixed = layer.mean(axis=0) + np.eye(len(product))
            product = (mixed / mixed.sum(axis=1, keepdims=True)) @ product
        found.append(product)
    return np.array(found)


def rolled(attentions_BNN: list[torch.Tensor]) -> torch.Tensor:
    """R of layers with one head each, the first one first."""
    found: torch.Tensor | None = None
    for attention in attentions_BNN:
        found = add_layer(found, attention[:, None])
    assert found is not None
    return found


def test_uniform_attention() -> None:
    """(1/N + I) / 2: half stays, half is spread; after L layers 2^-L of it has stayed."""
    uniform = torch.full((1, 4, 4), 0.25)
    found = rolled([uniform] * 3)
    stayed = 0.5**3
    expected = stayed * torch.eye(4) + (1 - stayed) / 4
    assert torch.allclose(found[0], expected, atol=1e-7)


def test_identity_attention_moves_nothing() -> None:
    assert torch.equal(rolled([torch.eye(5)[None]] * 4)[0], torch.eye(5))


def test_the_order_of_layers() -> None:
    """First 2 looks at 1, then 0 looks at 2: something of 1 has come to 0. The other way round it has not."""
    looks_at_1, looks_at_2 = torch.eye(3), torch.eye(3)
    looks_at_1[2] = torch.tensor([0.0, 1.0, 0.0])
    looks_at_2[0] = torch.tensor([0.0, 0.0, 1.0])
    assert rolled([looks_at_1[None], looks_at_2[None]])[0, 0].tolist() == [0.5, 0.25, 0.25]
    assert rolled([looks_at_2[None], looks_at_1[None]])[0, 0].tolist() == [0.5, 0.0, 0.5]


def test_rows_are_divided_by_their_own_sums() -> None:
    """Not by the sum of some other row, as one well-known implementation does: attention need not be symmetric."""
    attention = torch.tensor([[[3.0, 1.0], [0.0, 1.0]]])
    assert torch.allclose(add_residual(attention)[0], torch.tensor([[0.8, 0.2], [0.0, 1.0]]))


@pytest.mark.parametrize(
    "options",
    [
        dict(pool="token"),
        dict(pool="token", registers=2),
        dict(pool="gap", class_token=False),
        dict(pool="gap", class_token=True),
        dict(pool="token+mean"),
        dict(pool="token", positions="relative"),
    ],
)
def test_against_numpy(options: dict[str, Any]) -> None:
    model, images = model_of(**options), torch.randn(2, 3, 8, 12)
    product, prefix = by_numpy(model, images), model.prefix_tokens
    token, mean = product[:, 0], product[:, prefix:].mean(axis=1)
    rows = {"token": token, "gap": mean, "token+mean": (token + mean) / 2}[options["pool"]]
    found = compute_rollout(model, images)
    assert found.shape == (2, 2, 3)
    assert np.allclose(found.flatten(1), rows[:, prefix:], atol=1e-6)
    assert len({round(value, 6) for value in found.flatten().tolist()}) > 6  # not all alike, or nothing was compared
    model.lean = True  # as the evaluator runs it: the last layer only for the tokens that are read
    assert torch.allclose(compute_rollout(model, images), found, atol=1e-6)


def test_axial_attention() -> None:
    model, images = model_of(attention="axial", class_token=False, pool="gap"), torch.randn(2, 3, 8, 12)
    expected = by_numpy(model, images).mean(axis=1).reshape(2, 2, 3)
    assert np.allclose(compute_rollout(model, images), expected, atol=1e-6)


def test_attention_pooling_looks_where_its_probe_does() -> None:
    model, images = model_of(pool="map", class_token=False), torch.randn(2, 3, 8, 12)
    tokens = model.norm(model.tokens(images))
    pool = model.pool
    # The probe's attention by torch's own module, which gives the weights averaged over heads.
    reference = torch.nn.MultiheadAttention(24, 3, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([pool.query.weight, pool.key_value.weight]))
        reference.in_proj_bias.copy_(torch.cat([pool.query.bias, pool.key_value.bias]))
        _, weights = reference(pool.probe.expand(2, -1, -1), tokens, tokens)
    assert torch.allclose(probe_attention(pool, tokens).mean(dim=1), weights[:, 0], atol=1e-6)
    expected = np.einsum("bn,bnm->bm", weights[:, 0].detach().numpy(), by_numpy(model, images))
    assert np.allclose(compute_rollout(model, images).flatten(1), expected, atol=1e-6)


def test_a_hybrid_and_another_size_of_image() -> None:
    model = randomise(create("R26+ViT-Ti/32", classes=5, image_size=64, width=24, depth=2, heads=3, mlp=32)).eval()
    images = torch.randn(1, 3, 64, 96)
    found = compute_rollout(model, images)
    rows, columns = model.config.grid_of((64, 96))
    assert found.shape == (1, rows, columns)
    assert np.allclose(found.flatten(1), by_numpy(model, images)[:, 0, 1:], atol=1e-6)


def test_the_shares_sum_to_one_and_nothing_is_left_behind() -> None:
    model, images = model_of(class_token=False, pool="gap"), torch.randn(3, 3, 8, 12)
    assert torch.allclose(compute_rollout(model, images).sum(dim=(1, 2)), torch.ones(3), atol=1e-5)
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(VitreousError):
        compute_rollout(model, torch.randn(1, 3, 9, 12))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_resnet_has_no_attention_but_class_activation() -> None:
    model = randomise(create("R26x1", classes=5, image_size=64)).eval()
    images = torch.randn(2, 3, 64, 64)
    with pytest.raises(VitreousError, match="no attention"):
        compute_rollout(model, images)
    guessed = model(images).argmax(dim=1)
    for classes in (None, torch.tensor([3, 1])):
        found = class_activation(model, images, classes)
        wanted = guessed if classes is None else classes
        logits = model(images)[torch.arange(2), wanted] - model.head.bias[wanted]
        assert torch.allclose(found.mean(dim=(1, 2)), logits, rtol=1e-4, atol=1e-4)  # the parts make up the whole
    assert found.shape == (2, 2, 2)
    with pytest.raises(VitreousError, match="no head"):
        class_activation(create("R26x1", classes=0, image_size=64), images)


def test_for_people_from_zero_to_one() -> None:
    vit, images = model_of(), torch.randn(2, 3, 8, 12)
    raw = compute_rollout(vit, images).numpy()
    for found, own in zip(attention_map(vit, images).numpy(), raw, strict=True):
        assert np.allclose(found, (own - own.min()) / (own.max() - own.min()), atol=1e-6)
    resnet, images = randomise(create("R26x1", classes=5, image_size=64)).eval(), torch.randn(1, 3, 64, 64)
    own = class_activation(resnet, images)[0].clamp(min=0).numpy()
    found = attention_map(resnet, images)[0].numpy()
    spread = own.max() - own.min()
    assert np.allclose(found, (own - own.min()) / spread if spread else 0, atol=1e-5)
    least = resnet(images).argmin(dim=1)
    assert not np.allclose(attention_map(resnet, images, least)[0].numpy(), found, atol=1e-3), "another class, other places"


def test_a_picture_in_which_all_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "compute_rollout", lambda *_: torch.full((1, 2, 3), 0.25))
    assert attention_map(model_of(), torch.zeros(1, 3, 8, 12)).tolist() == [[[0.0] * 3] * 2]
