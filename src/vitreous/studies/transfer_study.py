"""Transfer (Tables 2 and 5): a pre-trained ViT against one from scratch, over labels per class."""

from __future__ import annotations

from vitreous.studies.stages import RATES, finetune, scratch, upstream, vit
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning

LABELS = (10, 30, 90)


def _arms(scale: Scale) -> list[Arm]:
    model, fields, images = f"ViT-Ti/{scale.patch}", vit(scale.width, scale.depth), scale.images // 4
    arms = []
    for labels in LABELS:
        begun = upstream(scale, model, fields, "upstream")
        pretrained = (begun, finetune(scale, "pre-trained", images=images, per_class=labels))
        alone = (scratch(scale, model, fields, "scratch", images=images, per_class=labels),)
        for family, stages in (("pre-trained", pretrained), ("scratch", alone)):
            arms.append(Arm(f"{family}, {labels}", stages, {"family": family, "labels": labels}))
    return arms


STUDY = Study(
    name="transfer",
    title="Pre-trained against scratch",
    paper="Tables 2 and 5",
    sentence="Pre-training helps on every downstream task, most on the small ones.",
    claims=(
        Claim(
            "Pre-training helps with few labels.",
            "test accuracy with 10 labels per class, pre-trained minus scratch, points",
            {"pre-trained, 10": 1, "scratch, 10": -1},
        ),
        Claim(
            "Pre-training helps most with few labels.",
            "gain of pre-training with 10 labels per class minus its gain with 90, points",
            {"pre-trained, 10": 1, "scratch, 10": -1, "pre-trained, 90": -1, "scratch, 90": 1},
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [
        Tuning("upstream", "pre-trained, 90", RATES),
        Tuning("pre-trained", "pre-trained, 90", RATES, stage=1),
        Tuning("scratch", "scratch, 90", RATES),
    ],
    axes=Axes("labels", "labelled images per class"),
    upstream="builtin:letters?size={size}&count={count}",
)
