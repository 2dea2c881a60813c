"""Attention probabilities of any layer and head, recomputed beside fused attention.

The model runs as always, on fused attention. A hook before the attention of each requested layer keeps only
that layer's probabilities, recomputed from the same input: one layer's matrices in memory at a time beside
the result. Works alike for rectangular grids, for models without class token, for hybrids and for axial models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.core.errors import VitreousError
from vitreous.models.axial import AxialBlock, expand_column_attention, expand_row_attention
from vitreous.models.config import Size
from vitreous.models.vit import Attention, ViT

Spread = Callable[[Tensor, Size], Tensor]


def require_attention(model: nn.Module) -> ViT:
    """The model, if it has attention."""
    if not isinstance(model, ViT):
        raise VitreousError(f"{type(model).__name__} has no attention between patches to look at; use a ViT or a hybrid")
    return model


def attention_layers(model: nn.Module) -> Iterator[tuple[Attention, Spread | None]]:
    """Every attention of the model in order, with the function that spreads its probabilities over all tokens.

    An axial block counts as two layers: its rows, then its columns.
    """
    for block in require_attention(model).blocks:
        if isinstance(block, AxialBlock):
            yield block.rows.attention, expand_row_attention  # type: ignore[misc]
            yield block.columns.attention, expand_column_attention  # type: ignore[misc]
        else:
            yield block.attention, None  # type: ignore[misc]


@contextmanager
def watch_attention(
    model: nn.Module, grid: Size, look: Callable[[int, Tensor], None], layers: Sequence[int] | None = None
) -> Iterator[None]:
    """While this is open, `look(layer, probabilities)` is called in each chosen layer of every pass, first layer first.

    Probabilities (B, heads, N, N) are of that layer alone; what `look` does not keep is gone when the next one comes.
    """
    every = list(attention_layers(model))
    vit = require_attention(model)

    def hook(layer: int, spread: Spread | None, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        probabilities = module.probabilities(inputs[0], grid)  # type: ignore[operator]
        look(layer, spread(probabilities, grid) if spread else probabilities)

    chosen = range(len(every)) if layers is None else layers
    with ExitStack() as hooks:
        # Merged tokens have no place in an image: what is shown is the attention of the model that merges none.
        hooks.callback(setattr, vit, "merge_tokens", vit.merge_tokens)
        vit.merge_tokens = 0
        for layer in chosen:
            attention, spread = every[layer]
            hooks.enter_context(attention.register_forward_pre_hook(partial(hook, layer, spread)))
        yield


@torch.no_grad()
def attention_maps(
    model: nn.Module, images: Tensor, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Tensor:
    """Probabilities (layers, B, heads, N, N) of preprocessed images (B, C, H, W); row i tells where token i looks.

    Negative numbers count from the last layer or head, as in Python.
    """
    vit = require_attention(model)
    chosen = _resolve_indices("layer", layers, len(list(attention_layers(vit))))
    kept_heads = _resolve_indices("head", heads, vit.config.heads)
    grid = vit.config.grid_of((images.shape[-2], images.shape[-1]))
    found: dict[int, Tensor] = {}

    def keep(layer: int, probabilities: Tensor) -> None:
        found[layer] = probabilities if heads is None else probabilities[:, kept_heads]

    with watch_attention(vit, grid, keep, sorted(set(chosen))):
        vit.tokens(images)
    return torch.stack([found[layer] for layer in chosen])


def _resolve_indices(what: str, asked: Sequence[int] | None, count: int) -> list[int]:
    if asked is None:
        return list(range(count))
    for index in asked:
        if not -count <= index < count:
            raise VitreousError(f"{what} {index} does not exist; the model has {count}, numbered 0 to {count - 1}")
    return [index % count for index in asked]
