"""Classification: softmax or sigmoid cross-entropy with label smoothing, mixed labels and class weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.core.errors import VitreousError
from vitreous.data.source import Source
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.evaluators import WORST_MISTAKES, ClassificationEvaluator, ScoredLogits
from vitreous.evaluation.majority import majority_rate
from vitreous.models.build import Model
from vitreous.training.config import RunConfig
from vitreous.training.distillation import Teacher
from vitreous.training.feature_loader import FeatureLoader
from vitreous.training.objectives.objective import Objective
from vitreous.training.recipes.recipe import Loss
from vitreous.training.validation import Evaluation, HeldOut


class Classification(Objective):
    classifies = True
    sums = ("top1",)
    weights: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        model: Model,
        loss: Loss,
        smoothing: float = 0.0,
        weights: Tensor | None = None,
        pos_weight: Tensor | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        """`weights` (C,) are of classes, `pos_weight` (C,) of the labels that images have against those that they lack."""
        super().__init__()
        self.model, self.loss, self.smoothing, self.teacher = model, loss, smoothing, teacher
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("pos_weight", pos_weight, persistent=False)

    @classmethod
    def from_config(cls, model: Model, config: RunConfig) -> Self:
        recipe, weights, pos_weight = config.recipe, None, None
        for field in ("class_weights", "pos_weight"):
            if getattr(recipe, field) == "balanced" and not isinstance(config.train, Source):
                raise VitreousError(f"{field}=balanced needs to count the images of each class, which shards do not tell")
        if recipe.class_weights == "balanced":
            weights = balanced_weights(config.train.counts().tolist())  # type: ignore[union-attr]
        if recipe.pos_weight == "balanced":
            pos_weight = balanced_pos_weight(config.train.counts().tolist(), len(config.train))  # type: ignore[union-attr, arg-type]
        teacher = None
        if config.teacher is not None:
            if recipe.loss != "softmax":
                raise VitreousError(f"--teacher is for images with one label each, loss=softmax, not for loss={recipe.loss}")
            seen = Preprocess(recipe.preprocess, config.model.channels)
            teacher = Teacher(config.teacher, config.classes, seen, recipe.teacher_weight, recipe.teacher_temperature)
        return cls(model, recipe.loss, recipe.smoothing, weights, pos_weight, teacher)

    def forward(self, images: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Targets (B, K): 1 for each label of an image, or shares of labels where images are mixed."""
        # Of a frozen backbone, features (B, D) may have been computed before: see `linear_probe`.
        logits = (self.model(images) if images.ndim == 4 else self.model.get_submodule("head")(images)).float()
        losses = self.losses(logits, targets)
        if self.teacher is not None and self.training:
            losses = self.teacher.losses(losses, logits, images, targets)
        right = targets.gather(1, logits.argmax(dim=1, keepdim=True)).squeeze(1) >= targets.amax(dim=1).clamp(min=1e-6)
        return losses, {"top1": right.sum(), "logits": logits.detach()}

    def validate(self, held_out: HeldOut) -> Evaluation:
        loader, world = held_out.loader, held_out.world
        evaluator = ClassificationEvaluator(
            held_out.classes,
            loader.preprocess,
            world,
            split=loader.data.split,
            sigmoid=self.loss == "sigmoid",
            mistakes=0 if isinstance(loader, FeatureLoader) else WORST_MISTAKES,
        )
        for batch, losses, extras in held_out.outputs():
            evaluator.update(batch, ScoredLogits(extras["logits"].float().cpu(), losses.float().cpu()))
        result = evaluator.result()
        majority = majority_rate([own.n for own in result.per_class], held_out.train_counts, result.n)
        metrics = {"loss": result.loss, "top1": result.top1, "n": float(result.n)}
        if result.top5 is not None:
            metrics["top5"] = result.top5
        return Evaluation(metrics, result.top1, dataclasses.replace(result, majority=majority))

    @staticmethod
    def score_as_metric(score: float) -> dict[str, float]:
        return {"top1": score}

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        s = self.smoothing
        if self.loss == "sigmoid":
            # A yes-or-no question for each class, summed over classes; smoothed targets are 1 - s and s.
            smooth = targets * (1.0 - 2.0 * s) + s
            pos_weight = self.pos_weight if self.training else None  # held-out images are counted as they are
            each = F.binary_cross_entropy_with_logits(logits, smooth, pos_weight=pos_weight, reduction="none")
            losses = each.sum(dim=1)
        else:
            shares = targets / targets.sum(dim=1, keepdim=True).clamp(min=1e-12)  # several labels share the probability
            smooth = shares * (1.0 - s) + s / logits.shape[1]
            known = targets.sum(dim=1) > 0  # an image without a label teaches nothing here
            losses = -(smooth * logits.log_softmax(dim=1)).sum(dim=1) * known
        if self.weights is not None and self.training:  # held-out images have other numbers of each class
            losses = losses * (targets @ self.weights) / targets.sum(dim=1).clamp(min=1e-12)
        return losses


def balanced_weights(counts: Sequence[int]) -> Tensor:
    """A weight for each class, such that all classes count alike and the mean weight of an image is 1.

    A class without images has none; its weight, never used, is 0.
    """
    images = torch.tensor(counts, dtype=torch.float64)
    weights = images.sum() / ((images > 0).sum() * images)
    return torch.where(images > 0, weights, 0.0).float()


def balanced_pos_weight(counts: Sequence[int], images: int) -> Tensor:
    """How many images lack a label for each that has it; 1 for a label that no image has."""
    positive = torch.tensor(counts, dtype=torch.float64)
    return torch.where(positive > 0, (images - positive) / positive.clamp(min=1), 1.0).float()
