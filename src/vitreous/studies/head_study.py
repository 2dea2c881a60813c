"""Class token against global average pooling, over learning rates (Figure 9, appendix D.3)."""

from __future__ import annotations

from vitreous.studies.stages import RATES, scratch, vit
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning

_POOLS = {"class token": "token", "average pooling": "gap"}


def _arms(scale: Scale) -> list[Arm]:
    """Each at the learning rate that its trials chose, for the claim; and at every rate, for the figure."""
    model = f"ViT-Ti/{scale.patch}"
    arms = []
    for name, pool in _POOLS.items():
        fields = vit(scale.width, scale.depth, pool=pool)
        arms.append(Arm(name, (scratch(scale, model, fields, name),), {"family": f"{name}, tuned"}))
        for rate in RATES:
            stage = scratch(scale, model, fields, recipe={"lr": rate})
            arms.append(Arm(f"{name}, lr {rate:g}", (stage,), {"family": name, "lr": rate}))
    return arms


STUDY = Study(
    name="head",
    title="Class token or average pooling",
    paper="Figure 9, appendix D.3",
    sentence="Both work similarly well, but need different learning rates.",
    claims=(
        Claim(
            "Average pooling is as good as a class token, each at its own learning rate.",
            "test accuracy with average pooling minus with a class token, points",
            {"average pooling": 1, "class token": -1},
            kind="equivalence",
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [Tuning(name, name, RATES) for name in _POOLS],
    axes=Axes("lr", "learning rate"),
)
