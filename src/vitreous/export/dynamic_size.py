"""Positions for any image size, computed inside the graph.

A model compares the grid of an image with its own and interpolates where they differ, which a traced graph cannot decide. While
`any_size` is open, positions are always interpolated, as products with matrices whose weights are computed from the grid:
every mode of interpolation is separable, so a table T becomes R T C', with a row of weights for each new place. On the grid
that the table was made for, the matrices are the identity.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.core.errors import VitreousError
from vitreous.models.axial_resnet import AxialResNet
from vitreous.models.build import Model
from vitreous.models.config import PositionResize, Size
from vitreous.models.positions import FactorisedPositions, LearnedPositions, SineCosinePositions, sine_cosine_table
from vitreous.models.resnet import Trunk
from vitreous.models.rotary import RotaryPositions, _turn

_CUBIC, _CUBIC_ANTIALIAS = -0.75, -0.5  # torch's two constants


def _cubic(x: Tensor, a: float) -> Tensor:
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def interpolation_weights(new: Any, old: int, mode: PositionResize) -> Tensor:
    """The matrix (new, old) that `torch.nn.functional.interpolate` multiplies one axis by; `new` may be a traced number."""
    places, own = torch.arange(new).float(), torch.arange(old).float()
    scale = old / torch.as_tensor(new).float()
    centre = (places + 0.5) * scale - 0.5
    if mode == "none":
        return torch.zeros_like(places)[:, None] * own
    if mode == "nearest":
        return ((centre + 0.5).floor()[:, None] == own).float()
    if mode.endswith("-antialias"):
        stretch = scale.clamp(min=1.0)
        x = (own - centre[:, None]) / stretch
        weights = _cubic(x, _CUBIC_ANTIALIAS) if mode.startswith("bicubic") else (1 - x.abs()).clamp(min=0)
        return weights / weights.sum(dim=1, keepdim=True)
    if mode.endswith("-aligned"):
        centre = places * ((old - 1) / (torch.as_tensor(new).float() - 1).clamp(min=1))
    if mode.startswith("bilinear"):
        return (1 - (centre.clamp(0, old - 1)[:, None] - own).abs()).clamp(min=0)
    # Bicubic reaches two places beyond the edge, where the edge's own value stands.
    around = torch.arange(-2, old + 2).float()
    return _cubic(centre[:, None] - around, _CUBIC) @ (around.clamp(0, old - 1)[:, None] == own).float()


def _resize(table_ND: Tensor, old: Size, grid: Any, mode: PositionResize) -> Tensor:
    rows, columns = (interpolation_weights(new, own, mode) for new, own in zip(grid, old, strict=True))
    table = table_ND.view(old[0], old[1] * table_ND.shape[1])
    by_row = (rows @ table).view(-1, old[1], table_ND.shape[1])  # (rows, old columns, D)
    return (columns @ by_row).reshape(-1, table_ND.shape[1])


def _learned(own: LearnedPositions, grid: Any) -> Tensor:
    patches = _resize(own.table[own.prefix :], own.grid, grid, own.mode)
    return torch.cat([own.table[: own.prefix], patches])


def _factorised(own: FactorisedPositions, grid: Any) -> Tensor:
    mode: PositionResize = "bilinear-aligned" if own.mode.endswith("-aligned") else "bilinear"
    y, x = (
        interpolation_weights(new, len(table), mode) @ table for new, table in zip(grid, (own.rows, own.columns), strict=True)
    )
    together = [x[None].expand(y.shape[0], -1, -1), y[:, None].expand(-1, x.shape[0], -1)]
    return torch.cat(together, dim=2).flatten(0, 1)


def _rotary(own: RotaryPositions, q: Tensor, k: Tensor, grid: Any = None) -> tuple[Tensor, Tensor]:
    cos, sin = own._table(own.grid if grid is None else grid, own.table.device).unbind(0)
    return _turn(q, cos, sin), _turn(k, cos, sin)


@contextlib.contextmanager
def any_size(model: Model) -> Iterator[None]:
    """The model with positions computed for whatever grid comes; refused by name where the graph could not do that."""
    replaced: list[nn.Module] = []
    if isinstance(model, AxialResNet) or getattr(model.config, "positions", None) == "relative":
        raise VitreousError(f"{model.config.name}: relative positions are tables for one size; leave out --dynamic-size")
    for module in model.modules():
        if isinstance(module, Trunk) and module.config.form == "post":
            raise VitreousError(
                f"{model.config.name}: its padding follows from the size, which a graph cannot hold; leave out --dynamic-size"
            )
        forward: Any = None
        if isinstance(module, LearnedPositions):
            forward = _learned
        elif isinstance(module, FactorisedPositions):
            forward = _factorised
        elif isinstance(module, RotaryPositions):
            forward = _rotary
        elif isinstance(module, SineCosinePositions):
            forward = _sine_cosine
        if forward is not None:
            module.forward = forward.__get__(module)
            replaced.append(module)
    try:
        yield
    finally:
        for module in replaced:
            del module.forward


def _sine_cosine(own: SineCosinePositions, grid: Any) -> Tensor:
    return sine_cosine_table(grid, own.width)
