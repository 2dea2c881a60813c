"""Masked patch prediction, the paper's self-supervised objective (appendix B.1.2; see docs/how-to/masked-patch.md).

Half of an image's patch embeddings are corrupted: of these 80 % become the mask token, 10 % the embedding of another patch
of the same image and 10 % stay as they are. For each corrupted patch, the untouched ones among them included, the encoder's
output at that place has to tell what the patch looked like.

Shapes: B images, N patches, K of them corrupted, D width, P predictions a patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.build import Model
from vitreous.models.initialise import lecun_normal_
from vitreous.models.vit import ViT
from vitreous.training.config import RunConfig
from vitreous.training.objectives.objective import Objective
from vitreous.training.objectives.patch_targets import PatchTarget, pixel_levels
from vitreous.training.recipes.recipe import MaskTarget
from vitreous.training.validation import Evaluation, HeldOut, mean_metrics

MASKED, REPLACED = 0.8, 0.1  # of the corrupted patches; the rest are kept


@dataclass(frozen=True)
class Corruption:
    """Which patches of each image are corrupted, and how."""

    places_BK: Tensor  # in no particular order
    masked_BK: Tensor  # true where the mask token stands in
    sources_BK: Tensor  # elsewhere: whose embedding stands there, the patch's own or another's


def corrupted_count(share: float, patches: int) -> int:
    """At least one: an image without a corrupted patch would have no loss."""
    return max(1, round(share * patches))


def draw_corruption(images: int, patches: int, share: float, device: torch.device) -> Corruption:
    """By torch's global generator. The set is a new one for every image, and each of its patches is drawn apart."""
    if patches < 2:
        raise VitreousError(
            f"masked-patch needs images of at least 2 patches, not {patches}: there is no other patch to tell one by; "
            "use larger images or a smaller patch"
        )
    count = corrupted_count(share, patches)
    places_BK = torch.rand(images, patches, device=device).argsort(dim=1)[:, :count]
    way_BK = torch.rand(images, count, device=device)
    replaced_BK = (way_BK >= MASKED) & (way_BK < MASKED + REPLACED)
    shift_BK = torch.randint(1, patches, (images, count), device=device)  # never a whole turn, so never the patch itself
    return Corruption(places_BK, way_BK < MASKED, torch.where(replaced_BK, (places_BK + shift_BK) % patches, places_BK))


def corrupt(patches_BND: Tensor, mask_token: Tensor, corruption: Corruption) -> Tensor:
    """The embeddings with the corrupted ones exchanged. Positions are added afterwards, so each place still knows itself."""
    sources_BKD = gather_tokens(patches_BND, corruption.sources_BK)
    inserted_BKD = torch.where(corruption.masked_BK[..., None], mask_token.to(patches_BND.dtype), sources_BKD)
    return patches_BND.scatter(1, _wide(corruption.places_BK, patches_BND), inserted_BKD)


def gather_tokens(values_BND: Tensor, places_BK: Tensor) -> Tensor:
    """The rows at these places, each image's own."""
    return values_BND.gather(1, _wide(places_BK, values_BND))


def _wide(places_BK: Tensor, values_BND: Tensor) -> Tensor:
    return places_BK[..., None].expand(-1, -1, values_BND.shape[2])


class MaskedPatches(Objective):
    """Images in; the loss of each out, and the sum of each image's share of right predictions ("top1")."""

    classifies = False
    masks_patches = True
    model: ViT

    def __init__(self, model: ViT, share: float, target: MaskTarget, preprocess: Preprocess) -> None:
        """`preprocess` is that of the images: labels are made of pixels."""
        super().__init__()
        config = model.config
        if config.norm_after_pool and config.pooled_width != config.width:
            raise VitreousError(f"{config.name} normalises pooled features, not patches; use pool='token' or pool='gap'")
        self.model, self.share, self.preprocess = model, share, preprocess
        self.target = PatchTarget(target, config.step, config.channels)
        self.sums = () if target == "pixels" else ("top1",)
        self.predictor = nn.Linear(config.width, self.target.outputs)
        with torch.no_grad():
            lecun_normal_(self.predictor.weight)  # flax's default, as the authors leave it for their tanh layer
            nn.init.zeros_(self.predictor.bias)
        for unused in (model.head, model.distillation_head, model.representation, model.pool):
            if unused is not None:  # gets no gradient here, which DDP would wait for
                unused.requires_grad_(False)

    @classmethod
    def from_config(cls, model: Model, config: RunConfig) -> Self:
        assert isinstance(model, ViT)
        recipe = config.recipe
        return cls(model, recipe.mask_share, recipe.mask_target, Preprocess(recipe.preprocess, config.model.channels))

    def validate(self, held_out: HeldOut) -> Evaluation:
        metrics = mean_metrics(held_out, self.sums)
        return Evaluation(metrics, -metrics["loss"])

    @staticmethod
    def score_as_metric(score: float) -> dict[str, float]:
        return {"loss": -score}

    def forward(self, images: Tensor, targets: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss (B,) in float32. `targets`, the labels that other objectives need, play no part."""
        with torch.no_grad():
            targets_BNP = self.target(pixel_levels(images, self.preprocess))
        patches_BND, grid = self.model.patches(images)
        corruption = draw_corruption(patches_BND.shape[0], patches_BND.shape[1], self.share, images.device)
        assert self.model.mask_token is not None
        z_BND = self.model.sequence(corrupt(patches_BND, self.model.mask_token, corruption), grid)
        z_BND = self.model.encode(z_BND, grid)
        # Only for the corrupted patches: norm and predictor work token by token.
        corrupted_BKD = gather_tokens(z_BND, corruption.places_BK + self.model.prefix_tokens)
        outputs_BKO = self.predictor(self.model.norm(corrupted_BKD)).float()
        return self.score(outputs_BKO, gather_tokens(targets_BNP, corruption.places_BK))

    def score(self, outputs_BKO: Tensor, targets_BKP: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Means over an image's corrupted patches, and over the predictions or values of each."""
        if self.target.kind == "pixels":
            return (outputs_BKO - targets_BKP).square().mean(dim=(1, 2)), {}
        logits_BKPC = outputs_BKO.unflatten(2, (-1, self.target.classes))
        # As a table of rows: the classes as the second of four axes, the other form it knows, take twice as long.
        loss_BKP = F.cross_entropy(logits_BKPC.flatten(0, 2), targets_BKP.flatten(), reduction="none").view_as(targets_BKP)
        right_BKP = logits_BKPC.detach().argmax(dim=3) == targets_BKP
        return loss_BKP.mean(dim=(1, 2)), {"top1": right_BKP.float().mean(dim=(1, 2)).sum()}
