"""The shape of a Transformer (Figure 8, appendix D.2): depth, width, MLP and patch at about twice the compute of a base."""

from __future__ import annotations

from vitreous.studies.stages import RATES, scratch, vit
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning


def _arms(scale: Scale) -> list[Arm]:
    width, depth, patch = scale.width, scale.depth, scale.patch
    base = vit(width, depth)
    # Multiply-adds of a layer are 4 width^2 + 2 width x mlp for each token: depth, width and MLP double them.
    wide = 4 * round(width * 2**0.5 / 4)
    shapes = {
        "base": base,
        "depth": {**base, "depth": 2 * depth},
        "width": {**base, "width": wide, "mlp": 2 * wide},
        "MLP": {**base, "mlp": 6 * width},
        "patch": {**base, "patch": scale.fine_patch},
    }
    return [Arm(name, (scratch(scale, f"ViT-Ti/{patch}", fields, "ViT"),), {"family": name}) for name, fields in shapes.items()]


STUDY = Study(
    name="shape",
    title="Depth, width, MLP and patch",
    paper="Figure 8, appendix D.2",
    sentence="Scaling the depth results in the biggest improvements, scaling the width in the smallest.",
    claims=(
        Claim(
            "Depth pays more than width.",
            "test accuracy at twice the compute, twice as deep minus wider, points",
            {"depth": 1, "width": -1},
        ),
        Claim(
            "Smaller patches pay more than width.",
            "test accuracy, finer patches (three to four times the tokens) minus wider, points",
            {"patch": 1, "width": -1},
        ),
        Claim(
            "Depth pays.",
            "test accuracy, twice as deep minus base, points",
            {"depth": 1, "base": -1},
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [Tuning("ViT", "base", RATES)],
    axes=Axes("flops", "training compute (FLOPs)"),
)
