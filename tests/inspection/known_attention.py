"""What the functions that look inside are held against: models whose attention is known because their weights were made by
hand, and the whole network written out in numpy, in float64, with loops, sharing nothing with the package but the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.models.build import create

from conftest import randomise

Array = NDArray[np.float64]
Grid = tuple[int, int]

# Every kind of model whose attention or tokens have a shape of their own.
KINDS: dict[str, dict[str, Any]] = {
    "token": dict(pool="token"),
    "registers": dict(pool="token", registers=2),
    "gap": dict(pool="gap"),
    "gap, class token": dict(pool="gap", class_token=True),
    "token+mean": dict(pool="token+mean"),
    "map": dict(pool="map"),
    "two heads": dict(pool="token", distillation_token=True, distillation_head=True),
    "relative": dict(pool="token", positions="relative"),
    "positions in every layer": dict(pool="token", position_placement="every"),
    "layer scale": dict(pool="token", layer_scale=0.3),
    "patches not square": dict(pool="token", patch=(4, 2)),
    "axial": dict(attention="axial"),
}


def small(name: str = "ViT-Ti/4", **options: Any) -> Any:
    """A model of that kind with drawn weights, for images of 8 x 12 pixels unless told otherwise."""
    shape = dict(classes=5, image_size=(8, 12), width=24, depth=3, heads=3, mlp=32)
    return randomise(create(name, **{**shape, **options})).eval()


def hybrid(**options: Any) -> Any:
    """The root of a ResNet, which takes 4 pixels to one, then patches of 8: 32 pixels for each token."""
    return small("R+ViT-Ti/16", **{**dict(image_size=(64, 96), trunk_width=32), **options})


# Attention made by hand. A look tells for every token, the leading ones first, which single token it looks at.

Look = Callable[[Grid, int], Sequence[int]]


def itself(grid: Grid, prefix: int) -> list[int]:
    return list(range(prefix + grid[0] * grid[1]))


def one_left(grid: Grid, prefix: int) -> list[int]:
    """The patch to the left; those at the edge, and leading tokens, at themselves."""
    places = range(grid[0] * grid[1])
    return [*range(prefix), *(prefix + place - (1 if place % grid[1] else 0) for place in places)]


def one_up(grid: Grid, prefix: int) -> list[int]:
    places = range(grid[0] * grid[1])
    return [*range(prefix), *(prefix + place - (grid[1] if place >= grid[1] else 0) for place in places)]


def first_token(grid: Grid, prefix: int) -> list[int]:
    return [0] * (prefix + grid[0] * grid[1])


def last_patch(grid: Grid, prefix: int) -> list[int]:
    tokens = prefix + grid[0] * grid[1]
    return [tokens - 1] * tokens


ALL_ALIKE = None
"""No look: the logits are all 0."""


@torch.no_grad()
def looking(*layers: Sequence[Look | None], grid: Grid = (2, 3), patch: Grid = (4, 2), **options: Any) -> Any:
    """A model each of whose heads, given by layer, looks where it is told.

    A token is nothing but a code of its position, which no layer changes. A head's keys are the codes and its queries the code
    of the token to be looked at, so long that the softmax gives 1 to that one and 0 to all others.
    """
    heads = len(layers[0])
    leading = int(options.get("class_token", options.get("pool", "token") == "token")) + options.get("registers", 0)
    tokens = leading + grid[0] * grid[1]
    size = (grid[0] * patch[0], grid[1] * patch[1])
    width = heads * (tokens + 2)
    shape = dict(width=width, heads=heads, depth=len(layers), mlp=8, patch=patch, image_size=size, classes=3)
    model: Any = create("ViT-Ti/4", **{**shape, "position_prefix": leading, **options}).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name and "head" not in name:
            parameter.zero_()
    torch.nn.init.normal_(model.head.weight)
    model.positions[0].table[:, :tokens] = torch.eye(tokens)
    for block, looks in zip(model.blocks, layers, strict=True):
        weight = block.attention.qkv.weight
        for head, look in enumerate(looks):
            if look is not None:
                first = head * (width // heads)
                for token, target in enumerate(look(grid, leading)):
                    weight[first + target, token] += 1000.0
                    weight[width + first + token, token] = 1.0
        block.attention.qkv.weight[2 * width :] = torch.eye(width)  # values that mean something, though `out` drops them
    return model


def pictures(model: Any, count: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, model.config.channels, *model.config.image_size, generator=generator)


# The network in numpy.


def run_by_numpy(model: Any, images: torch.Tensor) -> tuple[Array, Array]:
    """Attention (L, B, H, N, N), an axial block's rows and columns as two layers, and tokens (depth + 1, B, N, D)."""
    with torch.no_grad():
        maps = model.trunk(images).double().numpy()  # the trunk of a hybrid has no attention; a ViT's is the identity
    weights = {key: value.detach().double().numpy() for key, value in model.state_dict().items()}
    runs = [_one_image(model.config, weights, image) for image in maps]
    return np.stack([attention for attention, _ in runs], axis=1), np.stack([tokens for _, tokens in runs], axis=1)


def _one_image(config: Any, w: dict[str, Array], image: Array) -> tuple[Array, Array]:
    down, across = config.patch
    rows, columns = image.shape[1] // down, image.shape[2] // across
    patches = []
    for r in range(rows):
        for c in range(columns):
            cut = image[:, r * down : (r + 1) * down, c * across : (c + 1) * across]
            patches.append([(kernel * cut).sum() for kernel in w["embedding.weight"]] + w["embedding.bias"])
    leading = [w[key][0] for key in ("class_token", "distillation_token", "registers") if key in w]
    z = np.concatenate([*leading, np.array(patches)])

    n = len(z)
    by_row = [np.arange(r * columns, (r + 1) * columns) for r in range(rows)]
    by_column = [np.arange(c, n, columns) for c in range(columns)]
    attentions, tokens = [], []
    for block in range(config.depth):
        z = z + _positions(config, w, block, n)
        if block == 0:
            tokens.append(z)
        if config.attention == "axial":
            parts = [(f"blocks.{block}.rows.", by_row), (f"blocks.{block}.columns.", by_column)]
        else:
            parts = [(f"blocks.{block}.", [np.arange(n)])]
        for at, groups in parts:
            attention, z = _block(z, w, at, config, groups)
            attentions.append(attention)
        tokens.append(z)
    return np.array(attentions), np.array(tokens)


def _positions(config: Any, w: dict[str, Array], block: int, n: int) -> Array:
    added = np.zeros((n, config.width))
    if config.positions == "1d" and (block == 0 or config.position_placement == "every"):
        table, owned = w[f"positions.{block}.table"], config.position_prefix
        patches = len(table) - owned
        added[:owned], added[n - patches :] = table[:owned], table[owned:]
    return added


def _block(z: Array, w: dict[str, Array], at: str, config: Any, groups: list[NDArray[np.int64]]) -> tuple[Array, Array]:
    n, width = z.shape
    size = width // config.heads
    x = _norm(z, w[at + "norm1.weight"], w[at + "norm1.bias"], config.norm_eps)
    qkv = x @ w[at + "attention.qkv.weight"].T + w[at + "attention.qkv.bias"]
    attention, mixed = np.zeros((config.heads, n, n)), np.zeros((n, width))
    for group in groups:
        for head in range(config.heads):
            own = slice(head * size, (head + 1) * size)
            q, k, v = (qkv[:, part * width : (part + 1) * width][:, own] for part in range(3))
            for i in group:
                logits = np.array([q[i] @ k[j] for j in group])
                if at + "attention.relative.table" in w:
                    logits += [q[i] @ w[at + "attention.relative.table"][i - j + n - 1] for j in group]
                powers = np.exp((logits - logits.max()) / math.sqrt(size))
                attention[head, i, group] = powers / powers.sum()
                mixed[i, own] = sum(attention[head, i, j] * v[j] for j in group)
    branch = mixed @ w[at + "attention.out.weight"].T + w[at + "attention.out.bias"]
    z = z + branch * w.get(at + "scale1.gamma", np.array(1.0))
    hidden = _norm(z, w[at + "norm2.weight"], w[at + "norm2.bias"], config.norm_eps) @ w[at + "mlp.up.weight"].T
    hidden = _gelu(hidden + w[at + "mlp.up.bias"])
    branch = hidden @ w[at + "mlp.down.weight"].T + w[at + "mlp.down.bias"]
    return attention, z + branch * w.get(at + "scale2.gamma", np.array(1.0))


def _norm(z: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred = z - z.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps) * weight + bias


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
