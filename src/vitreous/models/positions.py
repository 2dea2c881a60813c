"""Position embeddings: every kind of appendix D.4, and their interpolation to another grid.

A learned table belongs to a grid of patches, rows x columns. Asked for another grid it is interpolated.
There are four ways of doing that in use, and they differ by several per cent; the authors' is
`scipy.ndimage.zoom(order=1)`, which is bilinear with aligned corners. So the mode is part of a model's config.

Shapes: G = (rows, columns) of the grid, N patches = rows x columns, P leading tokens that own a row, D width.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.models.config import PositionResize, Size, ViTConfig
from vitreous.models.rotary import RotaryPositions

_INTERPOLATION: dict[PositionResize, dict[str, Any]] = {
    "bilinear-aligned": dict(mode="bilinear", align_corners=True),  # the authors
    "bilinear": dict(mode="bilinear", align_corners=False),
    "bilinear-antialias": dict(mode="bilinear", align_corners=False, antialias=True),
    "bicubic": dict(mode="bicubic", align_corners=False),  # Hugging Face, DeiT, DINOv2, MAE
    "bicubic-aligned": dict(mode="bicubic", align_corners=True),  # torchvision
    "bicubic-antialias": dict(mode="bicubic", align_corners=False, antialias=True),  # timm
    "nearest": dict(mode="nearest-exact"),
}


def _to_float64(table: Tensor) -> Tensor:
    return table.float() if table.device.type == "mps" else table.double()  # Apple's devices have no float64


def resize_grid(table_ND: Tensor, old: Size, new: Size, mode: PositionResize) -> Tensor:
    """Carry a table with one row per patch from one grid to another, in float64 as scipy does."""
    if old == new:
        return table_ND
    if mode == "none":  # what was learnt is dropped: the baseline of the resolution study
        return table_ND.new_zeros(new[0] * new[1], table_ND.shape[1])
    grid_DG = _to_float64(table_ND).view(1, *old, -1).permute(0, 3, 1, 2)
    resized_DG: Tensor = F.interpolate(grid_DG, size=new, **_INTERPOLATION[mode])
    return resized_DG.permute(0, 2, 3, 1).reshape(new[0] * new[1], -1).to(table_ND.dtype)


def resize_line(table_ND: Tensor, new: int, mode: PositionResize) -> Tensor:
    """The same along one axis: a grid of a single row. Cubic filters have no meaning across one row, so linear stands in."""
    old = table_ND.shape[0]
    if old == new:
        return table_ND
    aligned = mode.endswith("-aligned")
    line = F.interpolate(_to_float64(table_ND).T[None], size=new, mode="linear", align_corners=aligned)
    return line[0].T.to(table_ND.dtype)


def resize_relative(table_NK: Tensor, prefix: int, old: Size, new: Size, mode: PositionResize) -> Tensor:
    """Carry a table of offsets along the sequence (2N - 1 rows, offset d at row d + N - 1) to another grid, in two dimensions.

    On a grid W wide, patches displaced by (dr, dc) are d = dr W + dc apart, so one row serves all pairs of tokens with that
    offset: those displaced by (dr, dc), those by (dr + 1, dc - W), which wrap around the edge, and pairs of a leading token
    and a patch. Interpolating along d would turn a column into another one, for W changes. Instead every pair of the new grid
    is given what such a pair had in the old one, and a row is the mean over the pairs that share it:

        two patches             the old rows, bilinear at the displacement scaled to the old grid
        leading token, patch    the old rows of that token, as an image of the grid, resized like any position table
        two leading tokens      the old row

    There are (H - |dr|) (W - |dc|) pairs of patches displaced by (dr, dc). On the same grid all pairs of a row agree.
    """
    if old == new:
        return table_NK
    table, aligned = _to_float64(table_NK), mode.endswith("-aligned")
    before, after = (prefix + grid[0] * grid[1] - 1 for grid in (old, new))  # rows of offset 0
    total, pairs = table.new_zeros(2 * after + 1, table.shape[1]), table.new_zeros(2 * after + 1)

    def add(offsets: Tensor, values: Tensor, weights: Tensor) -> None:
        total.index_add_(0, offsets + after, values * weights[:, None])
        pairs.index_add_(0, offsets + after, weights)

    place = [torch.arange(-n + 1, n, device=table.device) for n in (*old, *new)]  # displacements along each axis
    by_displacement = table[before + old[1] * place[0][:, None] + place[1]]  # (2 H - 1, 2 W - 1, K)
    rows, columns = (_interpolation_weights(new[axis], old[axis], aligned, table) for axis in (0, 1))
    values = torch.einsum("ir,jc,rck->ijk", rows, columns, by_displacement)
    count = (new[0] - place[2].abs())[:, None] * (new[1] - place[3].abs())
    add((new[1] * place[2][:, None] + place[3]).flatten(), values.flatten(0, 1), count.flatten().to(table))
    patches, patches_before = (torch.arange(grid[0] * grid[1], device=table.device) for grid in (new, old))
    one = torch.ones(len(patches)).to(table)
    for token in range(prefix):
        for sign in (-1, 1):  # it looks at the patches, and they at it
            image = table[before + sign * (prefix - token + patches_before)]
            add(sign * (prefix - token + patches), resize_grid(image, old, new, mode), one)
        within = token - torch.arange(prefix, device=table.device)
        add(within, table[before + within], one[:1].expand(prefix))
    return (total / pairs[:, None]).to(table_NK.dtype)


def _interpolation_weights(new: int, old: int, aligned: bool, like: Tensor) -> Tensor:
    """Weights (2 new - 1, 2 old - 1) that interpolate displacements of `new` places among those of `old`."""
    scale = (old - 1) / max(1, new - 1) if aligned else old / new
    at = (torch.arange(-new + 1, new).to(like) * scale).clamp(-old + 1, old - 1) + old - 1
    return (1 - (at[:, None] - torch.arange(2 * old - 1).to(like)).abs()).clamp(min=0)


def sine_cosine_table(grid: Size, width: int) -> Tensor:
    """Fixed 2-D sine and cosine of MoCo v3 and big_vision: [sin x, cos x, sin y, cos y], each a quarter of the width."""
    rows, columns = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    quarter = width // 4
    frequency = 10_000.0 ** -(torch.arange(quarter, dtype=torch.float64) / max(1, quarter - 1))
    x, y = columns.reshape(-1, 1) * frequency, rows.reshape(-1, 1) * frequency
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()


class LearnedPositions(nn.Module):
    """1-D: one learned row per token in raster order, the first P rows for leading tokens. The paper's default."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.prefix, self.mode = config.grid, config.position_prefix, config.position_resize
        self.table = nn.Parameter(torch.empty(self.prefix + self.grid[0] * self.grid[1], config.width))

    def forward(self, grid: Size) -> Tensor:
        if grid == self.grid:
            return self.table
        patches = resize_grid(self.table[self.prefix :], self.grid, grid, self.mode)
        return torch.cat([self.table[: self.prefix], patches])


class FactorisedPositions(nn.Module):
    """2-D: learned tables of half the width for X and for Y, concatenated. Leading tokens get none: they are learned anyway."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.mode = config.grid, config.position_resize
        self.columns = nn.Parameter(torch.empty(self.grid[1], config.width // 2))
        self.rows = nn.Parameter(torch.empty(self.grid[0], config.width // 2))

    def forward(self, grid: Size) -> Tensor:
        x = resize_line(self.columns, grid[1], self.mode)
        y = resize_line(self.rows, grid[0], self.mode)
        return torch.cat([x.repeat(grid[0], 1), y.repeat_interleave(grid[1], dim=0)], dim=1)


class SineCosinePositions(nn.Module):
    """Fixed 2-D sine and cosine: nothing learned, any grid exact."""

    table: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.width = config.grid, config.width
        # Made on the CPU even when the model is laid out on the meta device: no checkpoint carries this table.
        with torch.device("cpu"):
            self.register_buffer("table", sine_cosine_table(self.grid, self.width), persistent=False)

    def forward(self, grid: Size) -> Tensor:
        return self.table if grid == self.grid else sine_cosine_table(grid, self.width).to(self.table)


class RelativePositions(nn.Module):
    """Relative: the query also attends to a learned embedding of the offset p_q - p_k, counted along the sequence.

    Returns logits to add before the softmax. One table per layer, or one for all; heads share it.
    """

    def __init__(self, grid: Size, width: int, prefix: int = 0, mode: PositionResize = "bilinear-aligned") -> None:
        super().__init__()
        self.grid, self.prefix, self.mode = grid, prefix, mode
        self.table = nn.Parameter(torch.empty(2 * (prefix + grid[0] * grid[1]) - 1, width))

    def resized(self, grid: Size | None) -> Tensor:
        """The table for a grid; offset d is at row d + N - 1."""
        return resize_relative(self.table, self.prefix, self.grid, grid or self.grid, self.mode)

    def forward(self, q_BHNK: Tensor, grid: Size | None = None) -> Tensor:
        n, k = q_BHNK.shape[-2:]
        by_offset = (q_BHNK @ self.resized(grid).T) / math.sqrt(k)
        # One place of a flat table for each pair of tokens; it does not depend on the batch, so a traced graph can hold it.
        flat = _offset_rows(n, q_BHNK.device) + torch.arange(n, device=q_BHNK.device)[:, None] * by_offset.shape[-1]
        return by_offset.flatten(-2).index_select(-1, flat.flatten()).unflatten(-1, (n, n))


class RelativeValues(RelativePositions):
    """What relative positions add to the output of attention: each query's mean of the embeddings of its offsets."""

    def forward(self, probabilities_BHNN: Tensor, grid: Size | None = None) -> Tensor:
        table_NNK = self.resized(grid)[_offset_rows(probabilities_BHNN.shape[-1], probabilities_BHNN.device)]
        return torch.einsum("bhij,ijk->bhik", probabilities_BHNN, table_NNK)


def _offset_rows(n: int, device: torch.device) -> Tensor:
    """The row of p_q - p_k in a table of offsets, (N, N)."""
    place = torch.arange(n, device=device)
    return place[:, None] - place[None, :] + (n - 1)


InnerPositions: TypeAlias = RelativePositions | RotaryPositions | None


def build_inner_positions(config: ViTConfig) -> list[InnerPositions]:
    """What acts inside the attention of each layer: nothing, tables of offsets (one each, or one for all), or a rotation."""

    def table() -> RelativePositions:
        return RelativePositions(config.grid, config.width // config.heads, config.prefix_tokens, config.position_resize)

    if config.positions == "rope":
        return [RotaryPositions(config)] * config.depth
    if config.positions != "relative":
        return [None] * config.depth
    return [table()] * config.depth if config.position_placement == "shared" else [table() for _ in range(config.depth)]


def build_positions(config: ViTConfig) -> nn.ModuleList:
    """What is added to the tokens: nothing, one table (at the stem, or shared by all layers), or one for each layer."""
    kinds = {"1d": LearnedPositions, "2d": FactorisedPositions, "sincos": SineCosinePositions}
    if config.positions not in kinds:
        return nn.ModuleList()
    tables = config.depth if config.position_placement == "every" else 1
    return nn.ModuleList(kinds[config.positions](config) for _ in range(tables))
