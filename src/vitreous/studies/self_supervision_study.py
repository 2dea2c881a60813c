"""Self-supervision (section 4.6, appendix B.1.2): masked-patch pre-training against scratch and supervised pre-training."""

from __future__ import annotations

from vitreous.studies.stages import RATES, finetune, scratch, upstream, vit
from vitreous.studies.study import Arm, Axes, Claim, Scale, Stage, Study, Tuning

LABELS = 90
MASKS = {
    "masked, mean colour, 50 %": ("mean", 0.5),
    "masked, mean colour, 15 %": ("mean", 0.15),
    "masked, 4 x 4 colours, 50 %": ("downsized", 0.5),
    "masked, pixels, 50 %": ("pixels", 0.5),
}


def _arms(scale: Scale) -> list[Arm]:
    model, fields = f"ViT-Ti/{scale.patch}", vit(scale.width, scale.depth)

    def masked(target: str, share: float) -> Stage:
        recipe = {"lr": 1e-3, "mask_target": target, "mask_share": share}
        return upstream(scale, model, fields, recipe=recipe, objective="masked-patch")

    def tuned(family: str) -> Stage:
        return finetune(scale, family, images=scale.images // 4, per_class=LABELS)

    return [
        Arm("scratch", (scratch(scale, model, fields, "scratch", images=scale.images // 4, per_class=LABELS),)),
        Arm("supervised", (upstream(scale, model, fields, "upstream"), tuned("supervised"))),
        *(Arm(name, (masked(*how), tuned("masked"))) for name, how in MASKS.items()),
    ]


STUDY = Study(
    name="self-supervision",
    title="Masked-patch pre-training",
    paper="section 4.6, appendix B.1.2",
    sentence="Masked-patch pre-training improves on training from scratch by 2 %, and is 4 % behind supervised pre-training.",
    claims=(
        Claim(
            "Masked-patch pre-training beats training from scratch.",
            f"test accuracy with {LABELS} labels per class, masked-patch (mean colour, 50 %) minus scratch, points",
            {"masked, mean colour, 50 %": 1, "scratch": -1},
        ),
        Claim(
            "Masked-patch pre-training trails supervised pre-training.",
            f"test accuracy with {LABELS} labels per class, supervised minus masked-patch (mean colour, 50 %), points",
            {"supervised": 1, "masked, mean colour, 50 %": -1},
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [
        Tuning("upstream", "supervised", RATES),
        Tuning("supervised", "supervised", RATES, stage=1),
        Tuning("masked", "masked, mean colour, 50 %", RATES, stage=1),
        Tuning("scratch", "scratch", RATES),
    ],
    axes=Axes(),
    upstream="builtin:letters?size={size}&count={count}",
)
