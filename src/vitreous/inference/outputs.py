"""What a model gives for a batch, logits and features, and the module that computes both in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.core.errors import VitreousError
from vitreous.models.build import Model
from vitreous.models.vit import ViT

FeatureKind = Literal["head", "token", "mean", "patches"]
"""What enters the head; or after the final norm the class token, the mean of the patch tokens, or all of these."""


class Outputs(NamedTuple):
    """What a model gives for a batch: float32, on the CPU."""

    logits: Tensor
    """(B, C); of a model without a head, the features."""
    features: Tensor
    """(B, D): what enters the head, after the representation layer where there is one."""

    def finite(self) -> Tensor:
        """Which images have logits without NaN or infinity, (B,)."""
        return self.logits.isfinite().all(dim=1)


class OutputsModule(nn.Module):
    """Images (B, C, H, W) to logits and features, as one graph: what engines compile or translate."""

    def __init__(self, model: Model, kind: FeatureKind = "head") -> None:
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == "head" or not isinstance(self.model, ViT):
            return self.model.logits_and_features(images)
        features = token_features(self.model, images, self.kind)
        return features, features


def check_feature_kind(model: Model, kind: FeatureKind) -> None:
    """Refuses what the model does not have, before anything is computed."""
    if kind != "head" and not isinstance(model, ViT):
        raise VitreousError(f"{model.config.name} has no tokens; leave out --pool and --tokens")
    if kind == "token" and isinstance(model, ViT) and not model.config.class_token:
        raise VitreousError(f"{model.config.name} has no class token; use --pool mean, or head")


def normalised_tokens(model: ViT, z_BND: Tensor) -> Tensor:
    """The final norm on what the encoder gives. A model that normalises what is pooled has no norm for tokens that are not."""
    return z_BND if model.config.norm_after_pool else model.norm(z_BND)


def token_features(model: ViT, images: Tensor, kind: FeatureKind) -> Tensor:
    """(B, D), or (B, patches, D)."""
    z_BND, late = normalised_tokens(model, model.tokens(images)), model.config.norm_after_pool
    patches_BND = z_BND[:, model.prefix_tokens :]
    if kind == "patches":
        return patches_BND
    y_BD = z_BND[:, 0] if kind == "token" else patches_BND.mean(dim=1)
    return model.norm(y_BD) if late and model.config.pooled_width == model.config.width else y_BD


def concatenate(outputs: Iterable[Outputs]) -> Outputs:
    """The outputs of several batches as those of one."""
    logits, features = zip(*outputs, strict=True)
    return Outputs(torch.cat(logits), torch.cat(features))
