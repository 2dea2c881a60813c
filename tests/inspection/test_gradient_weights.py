"""Gradient-weighted rollout: against plain autograd through attention that is written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from known_attention import KINDS, hybrid, itself, looking, pictures, small
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inspection.gradient_weights import compute_gradient_rollout, gradient_rollout
from vitreous.models.build import create

from conftest import random_checkpoint


def by_autograd(model: Any, images: Tensor, classes: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> NDArray[np.float64]:
    """Every attention as a softmax in one great graph, each keeping its gradient; then products of whole matrices in numpy."""
    attentions: list[Tensor] = []

    def written_out(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0) -> Tensor:
        logits = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        attention = (logits if attn_mask is None else logits + attn_mask).softmax(dim=-1)
        attention.retain_grad()
        attentions.append(attention)
        return attention @ v

    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", written_out)
        out = model(images)
    if model.config.classes:
        wanted = out.argmax(dim=1) if classes is None else torch.tensor(classes)
        out[torch.arange(len(images)), wanted].sum().backward()
    else:
        (out.square().sum() / 2).backward()
    model.zero_grad(set_to_none=True)

    rows, columns = model.config.grid_of(tuple(images.shape[-2:]))
    weighed = [(a.detach() * a.grad).clamp(min=0).double().numpy() for a in attentions]
    probe_BN = None
    if model.pool is not None:
        looks = weighed.pop()[:, :, 0].mean(axis=1)
        probe_BN = looks / looks.sum(axis=1, keepdims=True)
    found = []
    for image in range(len(images)):
        n = model.prefix_tokens + rows * columns
        product = np.eye(n)
        for layer, heads in enumerate(weighed):
            if model.config.attention == "axial":
                lines = [range(r * columns, (r + 1) * columns) for r in range(rows)]
                if layer % 2:
                    lines = [range(c, n, columns) for c in range(columns)]
                weights = np.zeros((n, n))
                for number, line in enumerate(lines):
                    weights[np.ix_(line, line)] = heads[image * len(lines) + number].mean(axis=0)
            else:
                weights = heads[image].mean(axis=0)
            mixed = weights + np.eye(n)
            product = (mixed / mixed.sum(axis=1, keepdims=True)) @ product
        patches = product[model.prefix_tokens :].mean(axis=0)
        if probe_BN is not None:
            read = probe_BN[image] @ product
        elif model.config.pool == "token":
            read = product[0] if model.distillation_head is None else product[:2].mean(axis=0)
        else:
            read = patches if model.config.pool == "gap" else (product[0] + patches) / 2
        found.append(read[model.prefix_tokens :].reshape(rows, columns))
    return np.array(found)


@pytest.mark.parametrize("kind", [*KINDS, "hybrid"])
def test_against_autograd(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = hybrid() if kind == "hybrid" else small(**KINDS[kind])
    images = pictures(model)
    guessed = by_autograd(model, images, None, monkeypatch)
    found = compute_gradient_rollout(model, images)
    assert np.allclose(found, guessed, atol=1e-6, rtol=1e-4)
    assert np.ptp(guessed) > 1e-3  # not all alike, or nothing was compared

    least = model(images).argmin(dim=1).tolist()
    asked = by_autograd(model, images, least, monkeypatch)
    assert np.allclose(compute_gradient_rollout(model, images, torch.tensor(least)), asked, atol=1e-6, rtol=1e-4)
    assert not np.allclose(asked, guessed, atol=1e-4), "another class, other places"


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(pool="gap"),
        dict(pool="map"),
        dict(pool="token+mean"),
        dict(pool="gap", norm_after_pool=True),
        dict(pool="map", norm_after_pool=True),
        dict(attention="axial"),
        dict(representation=True),
        dict(mlp_form="swiglu", qkv_bias=False, layer_scale=0.3),
    ],
)
def test_models_without_a_head(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(classes=0, **options)
    images = pictures(model)
    assert np.allclose(
        compute_gradient_rollout(model, images), by_autograd(model, images, None, monkeypatch), atol=1e-6, rtol=1e-4
    )
    with pytest.raises(VitreousError, match="no head"):
        compute_gradient_rollout(model, images, torch.tensor([0, 1]))


def test_images_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = small(), torch.randn(1, 3, 16, 8)
    found = compute_gradient_rollout(model, images)
    assert found.shape == (1, 4, 2)
    assert np.allclose(found, by_autograd(model, images, None, monkeypatch), atol=1e-6, rtol=1e-4)


def test_images_of_any_kind_and_batches() -> None:
    classifier = Classifier(random_checkpoint("ViT-Ti/4", image_size=(8, 12), width=24, depth=2, heads=3, mlp=32, classes=4))
    made = np.random.default_rng(0).integers(0, 256, size=(5, 20, 20, 3), dtype=np.uint8)
    whole = gradient_rollout(classifier, made, [0, 1, 2, 3, 0])
    assert (whole.shape, whole.dtype) == ((5, 2, 3), np.float32)
    assert np.allclose(gradient_rollout(classifier, list(made), torch.tensor([0, 1, 2, 3, 0]), batch_size=2), whole, atol=1e-6)
    guesses = classifier.model(classifier.prepare(made)).argmax(dim=1).tolist()
    assert np.allclose(gradient_rollout(classifier, made), gradient_rollout(classifier, made, guesses, batch_size=3), atol=1e-6)


def test_nothing_raises_the_score() -> None:
    """Layers that add nothing have no gradient: the weights are 0 and every token stays where it is."""
    images = pictures(looking([itself]))
    assert not compute_gradient_rollout(looking([itself, itself]), images).any()
    assert np.allclose(compute_gradient_rollout(looking([itself], [itself], pool="gap"), images), 1 / 6)
    fresh = create(
        "ViT-Ti/4", image_size=(8, 12), width=24, depth=1, heads=3, mlp=32, classes=4, pool="map"
    )  # its head is zero
    found = compute_gradient_rollout(fresh, images[:, :, :, :1].expand(-1, -1, -1, 12))
    assert found.isfinite().all()
    assert torch.allclose(found.sum(dim=(1, 2)), torch.ones(2))


def test_it_runs_in_inference_mode_too() -> None:
    model = small()
    images = pictures(model)
    expected = compute_gradient_rollout(model, images)
    with torch.inference_mode():
        assert torch.equal(compute_gradient_rollout(model, images * 1), expected)
    with torch.no_grad():
        assert torch.equal(compute_gradient_rollout(model, images), expected)
    assert not expected.requires_grad


def test_weights_and_their_gradients_stay_as_they_are() -> None:
    model = small()
    images = pictures(model)
    model(images).sum().backward()
    for parameter in list(model.parameters())[::2]:
        parameter.requires_grad_(False)
    before = [(p.detach().clone(), None if p.grad is None else p.grad.clone(), p.requires_grad) for p in model.parameters()]
    expected = compute_gradient_rollout(model, images)
    model.requires_grad_(False)
    assert torch.allclose(compute_gradient_rollout(model, images), expected), (
        "frozen weights have gradients behind them all the same"
    )
    for parameter, (value, gradient, wanted) in zip(model.parameters(), before, strict=True):
        parameter.requires_grad_(wanted)
        assert torch.equal(parameter, value)
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)


def test_half_precision() -> None:
    model = small(layer_scale=0.3)
    images = pictures(model)
    exact = compute_gradient_rollout(model, images)
    found = compute_gradient_rollout(model.to(torch.bfloat16), images.to(torch.bfloat16))
    assert found.dtype == torch.float32
    assert torch.allclose(found, exact, atol=0.02)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([1], "1 classes for 2 images"),
        ([1, 2, 3], "3 classes for 2 images"),
        ([1, 5], "classes 0 to 4"),
        ([-1, 0], "classes 0 to 4"),
        ([0.5, 1.0], "number of one class"),
        (3, "number of one class"),
        ([[0], [1]], "number of one class"),
    ],
)
def test_wrong_classes(classes: Any, message: str) -> None:
    model = small()
    with pytest.raises(VitreousError, match=message):
        gradient_rollout(model, pictures(model), classes)
    with pytest.raises(VitreousError, match="classes"):
        gradient_rollout(model, pictures(model), classes, batch_size=1)


def test_an_error_on_the_way_back_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small().train()
    real, calls = model.blocks[1].mlp.forward, []

    def fail_the_second_time(z: Tensor) -> Tensor:
        calls.append(z.requires_grad)
        if len(calls) == 2:
            raise MemoryError("no more")
        return real(z)

    monkeypatch.setattr(model.blocks[1].mlp, "forward", fail_the_second_time)
    with pytest.raises(MemoryError):
        compute_gradient_rollout(model, pictures(model))
    assert calls == [False, True], "first without gradients, then with"
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_faults() -> None:
    with pytest.raises(VitreousError, match="no attention"):
        gradient_rollout(create("R26x1", classes=2, image_size=32), torch.randn(1, 3, 32, 32))
    with pytest.raises(VitreousError, match="not a multiple"):
        compute_gradient_rollout(small(), torch.randn(1, 3, 9, 12))
