"""Attention probabilities for any layer and head, without leaving the fast path for the others.

The model runs as always, on fused attention. A hook before each wanted layer's attention keeps nothing but
that layer's probabilities, recomputed from the same input: one layer's matrices in memory at a time beside
the result. Works alike for rectangular grids, for models without class token, for hybrids and for axial models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models.axial import AxialBlock, spread_columns, spread_rows
from vitreous.models.config import Size
from vitreous.models.vit import Attention, ViT

Spread = Callable[[Tensor, Size], Tensor]


def attention_layers(model: nn.Module) -> Iterator[tuple[Attention, Spread | None]]:
    """Every attention of the model in order, with the function that spreads its probabilities over all tokens.

    An axial block counts as two layers: its rows, then its columns.
    """
    if not isinstance(model, ViT):
        raise VitreousError(f"{type(model).__name__} has no attention to look at; use a ViT or a hybrid")
    for block in model.blocks:
        if isinstance(block, AxialBlock):
            yield block.rows.attention, spread_rows  # type: ignore[misc]
            yield block.columns.attention, spread_columns  # type: ignore[misc]
        else:
            yield block.attention, None  # type: ignore[misc]


@torch.no_grad()
def attention_maps(
    model: nn.Module, images: Tensor, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Tensor:
    """Probabilities (layers, B, heads, N, N) of preprocessed images (B, C, H, W); row i tells where token i looks.

    Negative numbers count from the last layer or head, as in Python.
    """
    every = list(attention_layers(model))
    assert isinstance(model, ViT)
    wanted = _resolve("layer", layers, len(every))
    kept_heads = _resolve("head", heads, model.config.heads)
    grid = model.config.grid_of((images.shape[-2], images.shape[-1]))
    found: dict[int, Tensor] = {}

    def keep(layer: int, spread: Spread | None, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        probabilities = module.probabilities(inputs[0])  # type: ignore[operator]
        if heads is not None:
            probabilities = probabilities[:, kept_heads]
        found[layer] = spread(probabilities, grid) if spread else probabilities

    handles = [
        every[layer][0].register_forward_pre_hook(partial(keep, layer, every[layer][1])) for layer in sorted(set(wanted))
    ]
    try:
        model.tokens(images)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack([found[layer] for layer in wanted])


def _resolve(what: str, asked: Sequence[int] | None, count: int) -> list[int]:
    if asked is None:
        return list(range(count))
    for index in asked:
        if not -count <= index < count:
            raise VitreousError(f"{what} {index} does not exist; the model has {count}, numbered 0 to {count - 1}")
    return [index % count for index in asked]
