"""Performance against pre-training compute (Figure 5, Table 6): ViT, ResNet and hybrid at equal training FLOPs."""

from __future__ import annotations

from vitreous.studies.stages import RATES, families, upstream
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning

LENGTHS = {"1/4": 4, "1/2": 2, "1": 1}


def _arms(scale: Scale) -> list[Arm]:
    return [
        Arm(
            f"{family}, {length}",
            (upstream(scale, model, fields, family, images=scale.images // part),),
            {"family": family},
            "fewshot",
            scale.data,
        )
        for family, (model, fields) in families(scale).items()
        for length, part in LENGTHS.items()
    ]


STUDY = Study(
    name="compute",
    title="Transfer against pre-training compute",
    paper="Figure 5, Table 6",
    sentence="ViT uses 2 to 4 times less compute than ResNet for the same transfer accuracy; hybrids lead at small compute.",
    claims=(
        Claim(
            "ViT reaches the same transfer accuracy as ResNet for less compute.",
            "few-shot accuracy at equal training FLOPs, mean of three lengths, ViT minus ResNet, points",
            {f"{family}, {length}": sign / len(LENGTHS) for family, sign in (("ViT", 1), ("ResNet", -1)) for length in LENGTHS},
        ),
        Claim(
            "Hybrids lead ViT at small compute.",
            "few-shot accuracy at a quarter of the training FLOPs, hybrid minus ViT, points",
            {"hybrid, 1/4": 1, "ViT, 1/4": -1},
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [Tuning(family, f"{family}, 1/2", RATES) for family in families(scale)],
    axes=Axes("flops", "pre-training compute (FLOPs)", y_label="few-shot accuracy on DATA (%)"),
    upstream="builtin:letters?size={size}&count={count}",
)
