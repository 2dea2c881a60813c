"""What an objective is: a model with a loss, and how it is validated.

Its call takes images and targets and returns the loss of each image (B,) in float32, whatever the model's precision, and a
dict with the sums over the images that `sums` names (and whatever its own `validate` reads).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self

from torch import Tensor, nn

from vitreous.models.build import Model
from vitreous.training.config import RunConfig
from vitreous.training.validation import Evaluation, HeldOut


class Objective(nn.Module):
    classifies: ClassVar[bool]  # learns class labels, so that the model has a head and its accuracy counts
    masks_patches: ClassVar[bool] = False  # needs a Vision Transformer with a mask token; draws masks at random

    model: nn.Module
    sums: tuple[str, ...]  # names of what a call adds up over the images, beside the loss

    @classmethod
    @abstractmethod
    def from_config(cls, model: Model, config: RunConfig) -> Self:
        """The objective of a run; refuses what does not go together."""

    @abstractmethod
    def forward(self, images: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]: ...

    @abstractmethod
    def validate(self, held_out: HeldOut) -> Evaluation:
        """The model as it is now, by the held-out images."""

    @staticmethod
    @abstractmethod
    def score_as_metric(score: float) -> dict[str, float]:
        """`Evaluation.score` under the name and with the sign of the metric that it is."""
