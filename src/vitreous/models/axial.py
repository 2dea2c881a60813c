"""Axial attention (appendix D.6): a row layer, then a column layer, each a block with its own MLP.

Attention within a row is ordinary attention with the rows as a batch, so nothing new has to be computed:
tokens are regrouped, an ordinary block runs, tokens are put back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitreous.models.config import Size


class AxialBlock(nn.Module):
    """Two blocks: tokens (B, rows x columns, D) attend along their row, then along their column."""

    def __init__(self, row_block: nn.Module, column_block: nn.Module) -> None:
        super().__init__()
        self.rows = row_block
        self.columns = column_block

    def forward(self, z_BND: Tensor, grid: Size) -> Tensor:
        b, n, d = z_BND.shape
        rows, columns = grid
        z = self.rows(z_BND.reshape(b * rows, columns, d), b)
        z = z.view(b, rows, columns, d).transpose(1, 2).reshape(b * columns, rows, d)
        z = self.columns(z, b)
        return z.view(b, columns, rows, d).transpose(1, 2).reshape(b, n, d)


def expand_row_attention(probabilities: Tensor, grid: Size) -> Tensor:
    """Row attention (B*rows, H, columns, columns) as attention between all patches (B, H, N, N): zero outside the row."""
    rows, columns = grid
    by_row = probabilities.unflatten(0, (-1, rows))
    full = by_row.new_zeros(by_row.shape[0], by_row.shape[2], rows, columns, rows, columns)
    for r in range(rows):
        full[:, :, r, :, r, :] = by_row[:, r]
    return full.flatten(4, 5).flatten(2, 3)


def expand_column_attention(probabilities: Tensor, grid: Size) -> Tensor:
    """The same for column attention (B*columns, H, rows, rows): spread as if columns were rows, then put in order."""
    rows, columns = grid
    turned = expand_row_attention(probabilities, (columns, rows))  # patches counted column by column
    order = torch.arange(rows * columns, device=turned.device).view(columns, rows).T.flatten()
    return turned[:, :, order][:, :, :, order]
