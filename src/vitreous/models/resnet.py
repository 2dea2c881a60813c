"""ResNets with group norm and standardised convolutions, in the two forms known as BiT.

| | `pre`: the BiT paper, big_transfer | `post`: the released hybrids, big_vision's bit.py |
| --- | --- | --- |
| unit | norm, ReLU, conv, three times; then add | conv, norm, ReLU; the last ReLU after adding |
| root | conv, max pool | conv, norm, ReLU, max pool |
| tail | norm, ReLU, mean | mean |
| padding | the same on both sides | as TensorFlow's "SAME": the odd pixel at the bottom right |
| group norm epsilon | 1e-5 | 1e-6 |
| standardised weight | (w - mean) / sqrt(var + 1e-10) | (w - mean) / (std + 1e-5) |

Both put the stride on the 3x3 convolution. Before its max pool the `pre` form pads with zeros in big_transfer,
which the released weights come from, and with minus infinity in big_vision's copy; values there may be negative, so it matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.core.errors import VitreousError
from vitreous.models.config import ResNetConfig
from vitreous.models.initialise import initialise_resnet

GROUPS = 32


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's "SAME": output is ceil(size / stride), and an odd padding puts the extra pixel last."""
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return total // 2, total - total // 2


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    top, bottom = same_padding(x.shape[-2], kernel, stride)
    left, right = same_padding(x.shape[-1], kernel, stride)
    return F.pad(x, (left, right, top, bottom), value=value) if top or bottom or left or right else x


class StdConv(nn.Conv2d):
    """A convolution without bias whose kernel is standardised per output channel, at every forward pass."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, bias=False)
        self.form, self.eps, self.how = config.form, config.standardise_eps, config.standardise

    def standardised(self) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        scale = variance.sqrt() + self.eps if self.how == "std+eps" else (variance + self.eps).sqrt()
        return (self.weight - mean) / scale

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if self.form == "post":
            return F.conv2d(pad_same(x, kernel, stride), self.standardised(), stride=stride)
        return F.conv2d(x, self.standardised(), stride=stride, padding=kernel // 2)


def group_norm(config: ResNetConfig, channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, channels, eps=config.norm_eps)


class PreUnit(nn.Module):
    """A bottleneck that normalises before each convolution; the shortcut branches off after the first norm."""

    def __init__(self, config: ResNetConfig, inputs: int, middle: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * middle
        self.norm1 = group_norm(config, inputs)
        self.conv1 = StdConv(config, inputs, middle, 1)
        self.norm2 = group_norm(config, middle)
        self.conv2 = StdConv(config, middle, middle, 3, stride)
        self.norm3 = group_norm(config, middle)
        self.conv3 = StdConv(config, middle, outputs, 1)
        self.shortcut = StdConv(config, inputs, outputs, 1, stride) if inputs != outputs or stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.norm1(x))
        residual = self.shortcut(a) if self.shortcut is not None else x
        y = self.conv1(a)
        y = self.conv2(F.relu(self.norm2(y)))
        y = self.conv3(F.relu(self.norm3(y)))
        return residual + y


class PostUnit(nn.Module):
    """A bottleneck that normalises after each convolution, the shortcut's included."""

    def __init__(self, config: ResNetConfig, inputs: int, middle: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * middle
        self.conv1 = StdConv(config, inputs, middle, 1)
        self.norm1 = group_norm(config, middle)
        self.conv2: nn.Module = StdConv(config, middle, middle, 3, stride)
        self.norm2: nn.Module = group_norm(config, middle)
        self.conv3 = StdConv(config, middle, outputs, 1)
        self.norm3 = group_norm(config, outputs)
        if inputs != outputs or stride != 1:
            self.shortcut: StdConv | None = StdConv(config, inputs, outputs, 1, stride)
            self.shortcut_norm: nn.GroupNorm | None = group_norm(config, outputs)
        else:
            self.shortcut, self.shortcut_norm = None, None

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        if self.shortcut is not None and self.shortcut_norm is not None:
            residual = self.shortcut_norm(self.shortcut(x))
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(residual + y)


Unit: TypeAlias = Callable[[Any, int, int, int], nn.Module]
"""From config, channels that enter, channels between and stride."""


class Trunk(nn.Module):
    """Root and stages: images (B, C, H, W) to a feature map. A hybrid ViT cuts its patches from this."""

    def __init__(self, config: ResNetConfig, unit: Unit | None = None) -> None:
        super().__init__()
        self.config = config
        self.root = StdConv(config, config.channels, config.width, 7, stride=2)
        self.root_norm = group_norm(config, config.width) if config.form == "post" else None
        unit = unit or (PostUnit if config.form == "post" else PreUnit)
        channels, stages = config.width, []
        for stage, count in enumerate(config.units):
            middle = config.width * 2**stage
            units: list[nn.Module] = []
            for index in range(count):
                units.append(unit(config, channels, middle, 2 if stage > 0 and index == 0 else 1))
                channels = 4 * middle
            stages.append(nn.Sequential(*units))
        self.stages = nn.Sequential(*stages)
        self.norm = group_norm(config, channels) if config.form == "pre" else None

    def forward(self, images: Tensor) -> Tensor:
        x = self.root(images)
        if self.root_norm is not None:
            x = F.relu(self.root_norm(x))
            x = F.max_pool2d(pad_same(x, 3, 2, value=float("-inf")), 3, stride=2)
        else:
            padding = 0.0 if self.config.root_padding == "zero" else float("-inf")
            x = F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=padding), 3, stride=2)
        x = self.stages(x)
        return F.relu(self.norm(x)) if self.norm is not None else x


class ResNet(nn.Module):
    """Images (B, C, H, W) of any size in, logits (B, classes) out; with no classes, features."""

    prefix_tokens = 0

    def __init__(self, config: ResNetConfig, unit: Unit | None = None) -> None:
        super().__init__()
        self.config = config
        self.trunk = Trunk(config, unit)
        self.head = nn.Linear(config.out_channels, config.classes) if config.classes else nn.Identity()
        self.initialise()

    def initialise(self) -> None:
        if not self.trunk.root.weight.is_meta:
            initialise_resnet(self)

    def features(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != self.config.channels:
            expected = f"(batch, {self.config.channels}, height, width)"
            raise VitreousError(f"{self.config.name} takes images of shape {expected}, not {tuple(images.shape)}")
        return self.trunk(images).mean(dim=(2, 3))

    def logits_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The head's output and its input, in one pass."""
        features = self.features(images)
        return self.head(features), features

    def forward(self, images: Tensor) -> Tensor:
        return self.logits_and_features(images)[0]
