"""Pre-training data (Figures 3 and 4, Table 5): nested subsets of the upstream images for ViT, ResNet and hybrid."""

from __future__ import annotations

from vitreous.studies.stages import RATES, families, finetune, upstream
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning
from vitreous.studies.study_data import count_training_images

SHARES = {"1/64": 64, "1/16": 16, "1/4": 4, "all": 1}


def _arms(scale: Scale) -> list[Arm]:
    """Every run sees the same number of images and stops early on validation images; few-shot accuracy on DATA."""
    count, steps = count_training_images(scale.upstream), scale.images // scale.batch_size
    arms = []
    for family, (model, fields) in families(scale).items():
        for share, part in SHARES.items():
            images = max(scale.batch_size, count // part)
            stage = upstream(scale, model, fields, family, subset=images, eval_every=max(1, steps // 4), recipe={"patience": 2})
            name = f"{family}, {share}"
            arms.append(Arm(name, (stage,), {"family": family, "images": images}, "fewshot", scale.data))
            if share in ("1/64", "all"):
                tuned = finetune(scale, "fine-tuning", images=scale.images // 4, per_class=50)
                arms.append(Arm(f"{name}, fine-tuned", (stage, tuned), {"family": f"{family}, fine-tuned", "images": images}))
    return arms


def _slopes() -> dict[str, float]:
    """Least squares over log2(images), which rises by two from subset to subset: ViT's slope minus ResNet's."""
    positions = (-3, -1, 1, 3)
    squares = sum(position**2 for position in positions)
    return {
        f"{family}, {share}": sign * position / squares
        for family, sign in (("ViT", 1), ("ResNet", -1))
        for share, position in zip(SHARES, positions, strict=True)
    }


STUDY = Study(
    name="data-size",
    title="Pre-training data",
    paper="Figures 3 and 4, Table 5",
    sentence="ViT models overtake ResNets as the pre-training data grows.",
    claims=(
        Claim(
            "ViT gains more from more upstream data than ResNet does.",
            "few-shot accuracy gained per doubling of the upstream images, ViT minus ResNet, points",
            _slopes(),
            smallest=0.2,
        ),
        Claim(
            "With all upstream images ViT transfers better than ResNet.",
            "few-shot accuracy after pre-training on all upstream images, ViT minus ResNet, points",
            {"ViT, all": 1, "ResNet, all": -1},
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [
        *(Tuning(family, f"{family}, all", RATES) for family in families(scale)),
        Tuning("fine-tuning", "ViT, all, fine-tuned", RATES, stage=1),
    ],
    axes=Axes("images", "upstream images", y_label="accuracy on DATA (%)"),
    upstream="builtin:letters?size={size}&count={count}",
)
