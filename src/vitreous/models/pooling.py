"""Multi-head attention pooling, the `map` head of big_vision's later models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitreous.models.attend import attend
from vitreous.models.config import ViTConfig
from vitreous.models.layers import MLP


class AttentionPool(nn.Module):
    """probe -> attention over the tokens -> x + MLP(LN(x)), (B, N, D) to (B, D)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.query = nn.Linear(config.width, config.width)
        self.key_value = nn.Linear(config.width, 2 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, z_BND: Tensor) -> Tensor:
        b, n, d = z_BND.shape
        q = self.query(self.probe).view(1, 1, self.heads, -1).transpose(1, 2).expand(b, -1, -1, -1)
        k, v = self.key_value(z_BND).view(b, n, 2, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x_BD = self.out(attend(q, k, v).transpose(1, 2).reshape(b, d))
        return x_BD + self.mlp(self.norm(x_BD))
