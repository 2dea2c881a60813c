"""Distillation [Hinton et al. 2015]: beside the labels, a run learns the predictions of a larger model (`--teacher`).

    loss = (1 - w) loss(labels) + w T^2 KL(softmax(t / T) || softmax(s / T))

s and t are the logits of student and teacher, w `teacher_weight` and T `teacher_temperature`; T^2 keeps the gradient's size
whatever T is. The teacher sees the very images that the student sees, random crops, flips and mixup included [Beyer et al.
2022]: their pixel values are restored, resized to the teacher's own size and scaled as its preprocessing has them.

Classes are matched by name. Of those that the teacher does not know it says nothing, so images of them learn from labels alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError, first_few
from vitreous.data.transforms.denormalise import undo_scaling
from vitreous.data.transforms.parse import Preprocess
from vitreous.weights.checkpoint import Checkpoint


class Teacher:
    """A frozen model that is no part of the objective: neither the state nor the checkpoint of a run holds it."""

    def __init__(
        self, checkpoint: Checkpoint, classes: Sequence[str], preprocess: Preprocess, weight: float, temperature: float
    ) -> None:
        """`classes` and `preprocess` are the student's."""
        self._clf, self._seen = Classifier(checkpoint, copy=False), preprocess
        self._clf.model.requires_grad_(False).eval()
        self.weight, self.temperature = weight, temperature
        shared = shared_classes(checkpoint, classes)
        self._own = torch.tensor([own for own, _ in shared])
        self._theirs = torch.tensor([theirs for _, theirs in shared])

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """(B, K) for the classes that both know, of images as the student gets them."""
        model, scales = self._clf.model.to(images.device), self._clf.preprocess.scales
        pixels = undo_scaling(self._seen, images.float())
        if images.shape[1] != model.config.channels:
            grey = pixels.mean(dim=1, keepdim=True)
            pixels = grey.expand(-1, model.config.channels, -1, -1)
        if (size := self._clf.evaluation_size) != tuple(pixels.shape[2:]):
            pixels = F.interpolate(pixels, size, mode="bilinear", antialias=True, align_corners=False)
        # Scaling is linear, so black and white tell all of it.
        black, white = (torch.full((1, model.config.channels, 1, 1), value) for value in (0.0, 255.0))
        for scale in scales:
            black, white = scale(black), scale(white)
        low, high = black.to(images.device), white.to(images.device)
        logits: Tensor = model(pixels / 255.0 * (high - low) + low)
        return logits.float()[:, self._theirs]

    def losses(self, losses: Tensor, logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        """The loss of each image (B,), of which `losses` are by the labels (B, C) and `logits` (B, C) the student's."""
        t = self.temperature
        theirs = (self.logits(images) / t).log_softmax(dim=1)
        own = (logits[:, self._own] / t).log_softmax(dim=1)
        divergence = (theirs.exp() * (theirs - own)).sum(dim=1) * t**2
        known = targets[:, self._own].sum(dim=1) / targets.sum(dim=1).clamp(min=1e-12)
        weight = self.weight * known
        return losses * (1 - weight) + divergence * weight


def shared_classes(checkpoint: Checkpoint, classes: Sequence[str]) -> list[tuple[int, int]]:
    """Numbers of the classes that both know, the student's and the teacher's."""
    known = {name: number for number, name in enumerate(checkpoint.classes or ())}
    shared = [(own, known[name]) for own, name in enumerate(classes) if name in known]
    if len(shared) < 2:
        theirs = f"its classes are {first_few(list(known), 4)}" if known else "it has no class names"
        raise VitreousError(
            f"--teacher: knows {len(shared)} of this data's {len(classes):,} classes by name ({theirs}; the data's are "
            f"{first_few(list(classes), 4)}); fine-tune a teacher on this data first"
        )
    return shared


def describe_teacher(name: str, checkpoint: Checkpoint, classes: Sequence[str]) -> str:
    """Which, and how many classes it knows."""
    shared = len(shared_classes(checkpoint, classes))
    alone = "" if shared == len(classes) else "; images of the others learn from their labels alone"
    return f"teacher {name}: {checkpoint.config.name}, knows {shared:,} of {len(classes):,} classes by name{alone}"
