"""Attention probabilities, for every shape of model, while the fast path stays on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from vitreous.core.errors import VitreousError
from vitreous.models.attention_maps import attention_maps
from vitreous.models.build import create

from conftest import randomise, relative

TINY: dict[str, Any] = dict(width=24, depth=3, heads=3, mlp=48, patch=4, image_size=(8, 12), classes=5)
MODELS = {
    "class token": ("ViT-B/16", TINY),
    "no class token": ("ViT-B/16", dict(TINY, pool="gap")),
    "registers": ("ViT-B/16", dict(TINY, registers=2)),
    "relative": ("ViT-B/16", dict(TINY, positions="relative")),
    "rope": ("ViT-B/16", dict(TINY, positions="rope")),
    "axial": ("ViT-B/16", dict(TINY, attention="axial")),
    "hybrid": ("R26+ViT-S/32", dict(depth=2, classes=5, image_size=(64, 96))),
}


@pytest.mark.parametrize("kind", MODELS)
def test_maps_are_probabilities_of_the_right_shape(kind: str) -> None:
    name, options = MODELS[kind]
    model = create(name, **options).eval()
    randomise(model)
    config = model.config
    maps = attention_maps(model, torch.randn(2, 3, *config.image_size))
    layers = config.depth * (2 if kind == "axial" else 1)
    assert maps.shape == (layers, 2, config.heads, config.tokens, config.tokens)
    assert torch.allclose(maps.sum(-1), torch.ones(maps.shape[:-1]), atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_maps_times_values_are_what_the_fast_path_computed(kind: str) -> None:
    """A from the maps, v from the layer's own input: A v must be the output of the fused kernel."""
    name, options = MODELS[kind]
    model = create(name, **options).eval()
    randomise(model)
    images = torch.randn(2, 3, *model.config.image_size)
    attention = (model.blocks[1].columns if kind == "axial" else model.blocks[1]).attention
    seen: dict[str, Any] = {}
    hooks = [
        attention.register_forward_pre_hook(lambda _, inputs: seen.update(z=inputs[0])),
        attention.out.register_forward_pre_hook(lambda _, inputs: seen.update(joined=inputs[0])),
    ]
    with torch.no_grad():
        model(images)
        for hook in hooks:
            hook.remove()
        _, _, v = attention.project(seen["z"])
        maps = attention.probabilities(seen["z"])
    expected = (maps @ v).transpose(1, 2).reshape(seen["joined"].shape)
    assert relative(seen["joined"], expected) < 1e-5
    if kind != "axial":
        assert torch.equal(attention_maps(model, images, layers=[1])[0], maps)


def test_axial_attention_stays_in_its_row_or_column() -> None:
    name, options = MODELS["axial"]
    model = create(name, **options).eval()
    maps = attention_maps(model, torch.randn(1, 3, 8, 12))
    row, column = torch.arange(6) // 3, torch.arange(6) % 3
    assert (maps[0, 0, 0] > 0).equal(row[:, None] == row[None, :])
    assert (maps[1, 0, 0] > 0).equal(column[:, None] == column[None, :])


def test_axial_block_is_row_block_then_column_block() -> None:
    name, options = MODELS["axial"]
    model = create(name, **options).eval()
    randomise(model)
    block, z = model.blocks[0], torch.randn(2, 6, 24)
    grid = z.view(2, 2, 3, 24).clone()
    for b in range(2):
        for r in range(2):
            grid[b, r] = block.rows(grid[b, r][None])[0]
        for c in range(3):
            grid[b, :, c] = block.columns(grid[b, :, c][None])[0]
    assert relative(block(z, (2, 3)), grid.view(2, 6, 24)) < 1e-5


def test_layers_and_heads_can_be_chosen_and_counted_from_the_end() -> None:
    model = create("ViT-B/16", **TINY).eval()
    randomise(model)
    images = torch.randn(1, 3, 8, 12)
    everything = attention_maps(model, images)
    assert torch.equal(attention_maps(model, images, layers=[-1, 0], heads=[2]), everything[[2, 0]][:, :, [2]])
    with pytest.raises(VitreousError, match="layer 3 does not exist"):
        attention_maps(model, images, layers=[3])
    with pytest.raises(VitreousError, match="head -4"):
        attention_maps(model, images, heads=[-4])


def test_the_fused_kernel_serves_every_layer_while_maps_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    attention_maps(create("ViT-B/16", **TINY).eval(), torch.randn(1, 3, 8, 12), layers=[1])
    assert len(calls) == TINY["depth"]


def test_no_hook_is_left_behind_even_after_an_error() -> None:
    model = create("ViT-B/16", **TINY).eval()
    with pytest.raises(VitreousError):
        attention_maps(model, torch.randn(1, 1, 8, 12))
    attention_maps(model, torch.randn(1, 3, 8, 12))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_resnet_has_no_attention() -> None:
    with pytest.raises(VitreousError, match="no attention"):
        attention_maps(create("R26x1", classes=2), torch.randn(1, 3, 32, 32))


def test_axial_maps_have_their_values_in_the_right_places() -> None:
    name, options = MODELS["axial"]
    model = create(name, **options).eval()
    randomise(model)
    images = torch.randn(2, 3, 8, 12)
    maps = attention_maps(model, images)
    with torch.no_grad():
        z, (rows, columns) = model.embed(images)
        block = model.blocks[0]
        grid = z.view(2, rows, columns, -1)
        after = torch.stack([block.rows(grid[:, r]) for r in range(rows)], dim=1)
        for b, r, c, other in ((0, 0, 1, 2), (1, 1, 0, 1), (1, 0, 2, 0)):
            own = block.rows.attention.probabilities(block.rows.norm1(grid[b, r][None]))[0]
            assert torch.allclose(maps[0, b, :, r * columns + c, r * columns + other], own[:, c, other], atol=1e-6)
        for b, c, r, other in ((0, 2, 0, 1), (1, 1, 1, 0)):
            own = block.columns.attention.probabilities(block.columns.norm1(after[b, :, c][None]))[0]
            assert torch.allclose(maps[1, b, :, r * columns + c, other * columns + c], own[:, r, other], atol=1e-6)
