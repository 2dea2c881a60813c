"""CutMix [Yun et al. 2019]: a box of every image is replaced by that of its neighbour, and labels share by area.

One box for the whole batch, of the area 1 - a for a ~ Beta(alpha, alpha), around a random centre and cut off at the border; the
labels' shares follow what is left of it. The neighbour is mixup's, and so is what happens to a batch that is spread over
processes.
"""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from vitreous.data.transforms.mixup import check_mixable, draw_beta


def cutmix(images: Tensor, targets: Tensor, alpha: float, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, W) and targets (B, K), both float, mixed; with alpha 0 or a single image, as they were."""
    check_mixable("cutmix", images, targets, alpha)
    if alpha == 0 or len(images) < 2:
        return images, targets
    height, width = images.shape[-2:]
    rows, columns = cutmix_box(height, width, alpha, seed, step)
    mixed = images.clone()
    mixed[:, :, rows, columns] = images.roll(1, 0)[:, :, rows, columns]
    share = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width)
    return mixed, torch.lerp(targets.roll(1, 0), targets, share)


def cutmix_box(height: int, width: int, alpha: float, seed: int, step: int) -> tuple[slice, slice]:
    """Rows and columns; the same for the same seed and step."""
    rng = Random(f"cutmix {seed} {step}")
    side = math.sqrt(1 - draw_beta(alpha, rng))
    return _around(int(rng.random() * height), side * height, height), _around(int(rng.random() * width), side * width, width)


def _around(centre: int, length: float, most: int) -> slice:
    first = centre - round(length / 2)
    return slice(max(0, first), min(most, first + round(length)))
