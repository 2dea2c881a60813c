"""AxialResNet (appendix D.6): a ResNet whose 3x3 convolutions are axial attention, along rows and then along columns.

The attention is the position-sensitive one of Axial-DeepLab (Wang et al., 2020), which the paper took as its baseline.
Position i of a row attends to position j of the same row, with an embedding r of their offset in all three places:

    A_ij = softmax_j((q_i k_j + q_i r^q_{i-j} + k_j r^k_{j-i}) / sqrt(K / 2))
    y_i  = sum_j A_ij (v_j + r^v_{i-j})

A group norm follows the projections and another one y. Queries and keys are half as wide as values, and heads share the
embeddings. Axial-DeepLab normalises the three logits by batch norm; here they are scaled, as in equation (6) of the ViT.

Shapes: B images, C channels, R rows of N positions, H heads, K = C / H.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.models.config import AxialResNetConfig
from vitreous.models.positions import RelativePositions, RelativeValues
from vitreous.models.resnet import PostUnit, ResNet, group_norm


class RowAttention(nn.Module):
    """Feature maps (B, C, R, N) to maps of the same shape; each row is a sequence of its own."""

    def __init__(self, config: AxialResNetConfig, channels: int, length: int) -> None:
        super().__init__()
        self.heads, self.width = config.heads, channels // config.heads
        self.qkv = nn.Conv2d(channels, 2 * channels, 1, bias=False)
        self.qkv_norm = group_norm(config, 2 * channels)
        row = (1, length)
        self.query_positions = RelativePositions(row, self.width // 2)
        self.key_positions = RelativePositions(row, self.width // 2)
        self.value_positions = RelativeValues(row, self.width)
        self.norm = group_norm(config, channels)

    def project(self, x_BCRN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B R, H, N, K / 2 or K)."""
        qkv = self.qkv_norm(self.qkv(x_BCRN)).unflatten(1, (self.heads, 2 * self.width))
        rows = qkv.permute(0, 3, 1, 4, 2).flatten(0, 1)
        q, k, v = rows.split((self.width // 2, self.width // 2, self.width), dim=-1)
        return q, k, v

    def forward(self, x_BCRN: Tensor) -> Tensor:
        q, k, v = self.project(x_BCRN)
        row = (1, x_BCRN.shape[3])
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        logits = logits + self.query_positions(q, row) + self.key_positions(k, row).transpose(-2, -1)
        probabilities = logits.softmax(dim=-1)
        y = probabilities @ v + self.value_positions(probabilities, row)
        y_BCRN = y.unflatten(0, (-1, x_BCRN.shape[2])).permute(0, 2, 4, 1, 3).reshape(x_BCRN.shape)
        return self.norm(y_BCRN)


class AxialAttention(nn.Module):
    """Rows, then columns; a stride of 2 averages squares of four positions, at an odd edge those that are there."""

    def __init__(self, config: AxialResNetConfig, channels: int, stride: int) -> None:
        super().__init__()
        # The root downsamples by 4, and every stage doubles the channels where it halves the map.
        step = 4 * channels // config.width // stride
        rows, columns = (-(-size // step) for size in config.image_size)
        self.rows = RowAttention(config, channels, columns)
        self.columns = RowAttention(config, channels, rows)
        self.stride = stride

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = self.columns(self.rows(x_BCHW).transpose(2, 3)).transpose(2, 3)
        return F.avg_pool2d(x, self.stride, ceil_mode=True) if self.stride > 1 else x


class AxialUnit(PostUnit):
    """A bottleneck with axial attention in the place of the 3x3 convolution."""

    def __init__(self, config: AxialResNetConfig, inputs: int, middle: int, stride: int) -> None:
        super().__init__(config, inputs, middle, stride)
        self.conv2 = AxialAttention(config, middle, stride)
        self.norm2 = nn.Identity()  # attention ends with a norm of its own


class AxialResNet(ResNet):
    """Built for `config.image_size`; for an image of another size its relative positions are interpolated on the fly."""

    config: AxialResNetConfig

    def __init__(self, config: AxialResNetConfig) -> None:
        super().__init__(config, AxialUnit)
