"""Mixup as in BiT and AugReg: every image of a batch is laid over its neighbour, and so are their labels.

One share for the whole batch, drawn from Beta(alpha, alpha) and folded to 1/2..1, so that the image itself is never the
weaker of the two; the neighbour is the image before it, the last one for the first.

A batch that is spread over processes is mixed part by part, each with the share that all draw alike, since it depends on
nothing but the seed and the step. That is how the AugReg models were trained, on one part for each device; big_vision's
later code takes the neighbour from the whole batch. Only the first image of each part tells the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from vitreous.core.errors import VitreousError


def mixup(images: Tensor, targets: Tensor, alpha: float, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, W) and targets (B, K), both float, mixed; with alpha 0 or a single image, as they were."""
    check_mixable("mixup", images, targets, alpha)
    if alpha == 0 or len(images) < 2:
        return images, targets
    share = mixing_share(alpha, seed, step)
    return torch.lerp(images.roll(1, 0), images, share), torch.lerp(targets.roll(1, 0), targets, share)


def check_mixable(name: str, images: Tensor, targets: Tensor, alpha: float) -> None:
    check_alpha(name, alpha)
    if len(images) != len(targets):
        raise VitreousError(f"{name}: {len(images):,} images but {len(targets):,} targets; they must belong together")
    if not (images.is_floating_point() and targets.is_floating_point()):
        raise VitreousError(f"{name}: images and targets must be float; put range or normalise before it, and use one_hot")


def check_alpha(name: str, alpha: float) -> None:
    if not (math.isfinite(alpha) and alpha >= 0):
        raise VitreousError(f"{name}({alpha:g}): alpha must be 0 (no mixing) or more, such as 0.2")


def mixing_share(alpha: float, seed: int, step: int) -> float:
    """How much of each image stays: max(a, 1 - a) for a ~ Beta(alpha, alpha). The same for the same seed and step."""
    return (1 + abs(_draw_spread(alpha, Random(f"mixup {seed} {step}")))) / 2


def draw_beta(alpha: float, rng: Random) -> float:
    """From Beta(alpha, alpha)."""
    return (1 + _draw_spread(alpha, rng)) / 2


def _draw_spread(alpha: float, rng: Random) -> float:
    """2 a - 1 for a ~ Beta(alpha, alpha).

    Python keeps its promise of the same numbers in every version for `random()` alone, not for `betavariate`; so it
    comes straight from two uniform numbers. A symmetric beta is 1/2 + t / 2 sqrt(n + t^2) for a Student's t with n = 2 alpha
    degrees of freedom, and t^2 / n is (u^(-1/alpha) - 1) cos^2(2 pi v) for uniform u and v [Bailey 1994, Devroye 1996].
    Written with u^(1/alpha), nothing overflows for a small alpha.
    """
    power = rng.random() ** (1 / alpha)
    cosine = math.cos(2 * math.pi * rng.random())
    spread = (1 - power) * cosine**2
    return math.copysign(math.sqrt(spread / (power + spread)), cosine)


def one_hot(labels: Sequence[tuple[int, ...]], classes: int) -> Tensor:
    """A row for each image with a 1 for each of its labels: several for several, none where nothing is known."""
    rows = torch.zeros(len(labels), classes)
    for row, its_labels in zip(rows, labels, strict=True):
        for label in its_labels:
            if not 0 <= label < classes:
                raise VitreousError(f"label {label} of {classes} classes (0 to {classes - 1}); the labels are another set's")
            row[label] = 1.0
    return rows
