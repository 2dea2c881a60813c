"""The parts of an encoder layer around attention: q, k, v without a bias for k, MLP, layer scale, stochastic depth."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.models.config import Activation, ViTConfig


class QuickGELU(nn.Module):
    """OpenAI's approximation, found in CLIP-like checkpoints."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),  # flax's default, so the authors'
    "gelu-erf": nn.GELU,  # timm, Hugging Face
    "gelu-quick": QuickGELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
}


class QueryValueBias(nn.Linear):
    """U_qkv with a bias for queries and values only, (2 D); DINOv3's keys have none."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width)
        self.bias = nn.Parameter(torch.empty(2 * width))

    def forward(self, x: Tensor) -> Tensor:
        q_D, v_D = self.bias.chunk(2)
        return F.linear(x, self.weight, torch.cat([q_D, torch.zeros_like(q_D), v_D]))

    @classmethod
    def of(cls, config: ViTConfig) -> nn.Linear:
        if config.qkv_bias and not config.key_bias:
            return cls(config.width)
        return nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)


class MLP(nn.Module):
    """Two dense layers with a GELU between them, dropout after each (appendix B.1).

    The gated form (SwiGLU, in large DINOv2 and DINOv3) multiplies a SiLU gate with a second projection; both stand in `up`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gated = config.mlp_form == "swiglu"
        self.up = nn.Linear(config.width, config.mlp * (2 if self.gated else 1))
        self.activation = nn.SiLU() if self.gated else ACTIVATIONS[config.activation]()
        self.down = nn.Linear(config.mlp, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, value = self.up(x).chunk(2, dim=-1)
            hidden = self.activation(gate) * value
        else:
            hidden = self.activation(self.up(x))
        return self.dropout(self.down(self.dropout(hidden)))


class LayerScale(nn.Module):
    """A learned factor per channel on a residual branch."""

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma

    @classmethod
    def of(cls, config: ViTConfig) -> nn.Module:
        return nn.Identity() if config.layer_scale is None else cls(config.width, config.layer_scale)


class StochasticDepth(nn.Module):
    """Drops a residual branch for whole images at random, and scales what is kept so that its mean stays the same."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor, images: int) -> Tensor:
        """`images` may be fewer than the first axis is long, where an image's rows stand one after another there."""
        if not self.training or self.rate == 0.0:
            return branch
        kept = F.dropout(branch.new_ones(images), self.rate).repeat_interleave(branch.shape[0] // images)
        return branch * kept.view(-1, *[1] * (branch.ndim - 1))

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"
