"""Rotary positions of DINOv3: queries and keys are turned by angles that follow from where their patch lies.

Nothing is learned and nothing is added to the tokens. The product of a query and a key, turned by a_i and a_j, depends on
the patches' places through a_i - a_j alone. Coordinates run from -1 to 1 over any grid, so no table needs resizing.

Shapes: B images, H heads, N tokens of which P are leading ones, K head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.models.config import Size, ViTConfig


def rotation_table(grid: Size, prefix: int, head_width: int, base: float, device: torch.device | None = None) -> Tensor:
    """Cosine and sine of every token's angles, (2, N, K / 2): half of them from the row, half from the column.

    Leading tokens have no place: their angle is 0, which turns nothing.
    """
    quarter = head_width // 4
    frequency = base ** -(torch.arange(quarter, dtype=torch.float32, device=device) / quarter)
    centres = (2 * (torch.arange(n, dtype=torch.float32, device=device) + 0.5) / n - 1 for n in grid)
    places_N2 = torch.stack(torch.meshgrid(*centres, indexing="ij"), dim=-1).flatten(0, 1)
    angles_NK = (2 * math.pi * places_N2[:, :, None] * frequency).flatten(1)
    angles_NK = F.pad(angles_NK, (0, 0, prefix, 0))
    return torch.stack([angles_NK.cos(), angles_NK.sin()])


class RotaryPositions(nn.Module):
    """Turns queries and keys, both (B, H, N, K), alike in every layer and head."""

    table: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.prefix = config.grid, config.prefix_tokens
        self.head_width, self.base = config.width // config.heads, config.rope_base
        # Made on the CPU even when the model is laid out on the meta device: no checkpoint carries this table.
        self.register_buffer("table", self._table(self.grid, torch.device("cpu")), persistent=False)

    def _table(self, grid: Size, device: torch.device) -> Tensor:
        return rotation_table(grid, self.prefix, self.head_width, self.base, device)

    def forward(self, q: Tensor, k: Tensor, grid: Size | None = None) -> tuple[Tensor, Tensor]:
        built = grid is None or grid == self.grid
        cos, sin = self.table if built else self._table(grid, self.table.device).to(self.table)  # type: ignore[arg-type]
        return _turn(q, cos, sin), _turn(k, cos, sin)


def _turn(x_BHNK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Channel c of the first half and channel c of the second are the two coordinates that angle c turns."""
    first, second = x_BHNK.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x_BHNK.dtype)
