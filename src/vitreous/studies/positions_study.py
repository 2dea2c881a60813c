"""Position embeddings (Table 8): none, 1-D, 2-D and relative, at the stem, in every layer or shared."""

from __future__ import annotations

from vitreous.studies.stages import RATES, scratch, vit
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning

_KINDS = {
    "none": {"positions": "none"},
    "1-D, stem": {},
    "1-D, every layer": {"position_placement": "every"},
    "1-D, shared": {"position_placement": "shared"},
    "2-D, stem": {"positions": "2d"},
    "2-D, every layer": {"positions": "2d", "position_placement": "every"},
    "2-D, shared": {"positions": "2d", "position_placement": "shared"},
    "relative": {"positions": "relative"},
}


def _arms(scale: Scale) -> list[Arm]:
    fields = vit(scale.width, scale.depth)
    model = f"ViT-Ti/{scale.fine_patch}"  # where patches are many, their places matter
    return [
        Arm(name, (scratch(scale, model, {**fields, **kind}, family="ViT"),), {"positions": name})
        for name, kind in _KINDS.items()
    ]


STUDY = Study(
    name="positions",
    title="Position embeddings",
    paper="Table 8, appendix D.4",
    sentence="There is a large gap between no position embedding and any; the kinds differ little.",
    claims=(
        Claim(
            "A position embedding beats none.",
            "test accuracy with 1-D position embeddings minus without any, points",
            {"1-D, stem": 1, "none": -1},
        ),
        Claim(
            "2-D position embeddings are as good as 1-D ones.",
            "test accuracy with 2-D minus with 1-D position embeddings, points",
            {"2-D, stem": 1, "1-D, stem": -1},
            kind="equivalence",
        ),
        Claim(
            "Relative position embeddings are as good as 1-D ones.",
            "test accuracy with relative minus with 1-D position embeddings, points",
            {"relative": 1, "1-D, stem": -1},
            kind="equivalence",
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [Tuning("ViT", "1-D, stem", RATES)],
    axes=Axes(),
)
