"""Fine-tuning at higher resolution (section 3.2): with the official resize of position embeddings, others, or none."""

from __future__ import annotations

from vitreous.studies.stages import RATES, finetune, upstream, vit
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning

MODES = {"official": "bilinear-aligned", "bicubic": "bicubic", "nearest": "nearest", "none": "none"}


def _arms(scale: Scale) -> list[Arm]:
    """The patch stays, so that twice the resolution is four times as many tokens."""
    arms = []
    for mode, name in MODES.items():
        stage = upstream(scale, f"ViT-Ti/{scale.patch}", vit(scale.width, scale.depth, position_resize=name), "upstream")
        for size in (scale.image_size, 2 * scale.image_size):
            tuned = finetune(scale, "fine-tuning", images=scale.images // 4, image_size=size)
            if size > scale.image_size or mode == "official":
                label = "same resolution" if size == scale.image_size else f"double, {mode} resize"
                arms.append(Arm(label, (stage, tuned), {"family": mode, "resolution": size}))
    return arms


STUDY = Study(
    name="resolution",
    title="Fine-tuning at higher resolution",
    paper="section 3.2",
    sentence="It is often beneficial to fine-tune at higher resolution, with position embeddings interpolated in 2-D.",
    claims=(
        Claim(
            "Fine-tuning at higher resolution helps.",
            "test accuracy at twice the resolution minus at the resolution of pre-training, points",
            {"double, official resize": 1, "same resolution": -1},
        ),
        Claim(
            "Higher resolution needs the resize of position embeddings.",
            "test accuracy at twice the resolution, positions resized minus reset, points",
            {"double, official resize": 1, "double, none resize": -1},
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [
        Tuning("upstream", "same resolution", RATES),
        Tuning("fine-tuning", "same resolution", RATES, stage=1),
    ],
    axes=Axes(),
    upstream="builtin:letters?size={size}&count={count}",
)
