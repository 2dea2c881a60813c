"""Axial attention (Figure 13, appendix D.6): axial and full attention at equal tokens, over compute."""

from __future__ import annotations

from vitreous.studies.stages import RATES, scratch, vit
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning


def _arms(scale: Scale) -> list[Arm]:
    """About 8 x 8 tokens, pooled by their average; and 4 x 4."""
    fields = vit(scale.width, scale.depth, pool="gap")
    fine, coarse = f"ViT-Ti/{scale.fine_patch}", f"ViT-Ti/{scale.patch}"
    axial, images = {**fields, "attention": "axial"}, scale.images // 2
    return [
        Arm("axial", (scratch(scale, fine, axial, "axial", images=images),), {"family": "axial"}),
        Arm("full", (scratch(scale, fine, fields, "full", images=images),), {"family": "full"}),
        Arm(
            "axial, 16 tokens",
            (scratch(scale, coarse, axial, "axial", images=images),),
            {"family": "axial"},
        ),
        Arm("full, 16 tokens", (scratch(scale, coarse, fields, "full", images=images),), {"family": "full"}),
    ]


STUDY = Study(
    name="axial",
    title="Axial attention",
    paper="Figure 13, appendix D.6",
    sentence="Axial-ViT performs better than ViT at equal tokens, at the cost of more compute.",
    claims=(
        Claim(
            "Axial attention is better than full attention at equal tokens.",
            "test accuracy at equal tokens and images seen, axial minus full attention, points",
            {"axial": 1, "full": -1},
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [Tuning("axial", "axial", RATES), Tuning("full", "full", RATES)],
    axes=Axes("flops", "training compute (FLOPs)"),
)
