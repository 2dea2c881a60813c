"""Attention distance over depth (Figures 7 and 11, appendix D.7): ViT and hybrid."""

from __future__ import annotations

from vitreous.studies.measures import GLOBAL
from vitreous.studies.stages import RATES, scratch, vit
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning


def _arms(scale: Scale) -> list[Arm]:
    """Both have a grid of 8 x 8 tokens and heads of 16, at the end of training and after a quarter of it."""
    fields = vit(scale.width, scale.depth, heads=max(2, scale.width // 16))
    hybrid = {**fields, "trunk_width": 32, "patch": max(1, scale.image_size // 32)}
    models = {"ViT": (f"ViT-Ti/{scale.image_size // 8}", fields), "hybrid": ("R+ViT-Ti/2", hybrid)}
    return [
        Arm(f"{name}{after}", (scratch(scale, model, own, name, images=images),), {"family": f"{name}{after}"}, "distance")
        for name, (model, own) in models.items()
        for after, images in (("", scale.images // 2), (", a quarter of the run", scale.images // 8))
    ]


STUDY = Study(
    name="distance",
    title="Attention distance in the lowest layer",
    paper="Figures 7 and 11, appendix D.7",
    sentence="Some heads attend to most of the image in the lowest layer; highly localised attention is less pronounced in hybrids.",
    claims=(
        Claim(
            "Some heads are global in the lowest layer of a ViT.",
            f"largest attention distance of a head in the lowest layer, percent of uniform attention's, minus {100 * GLOBAL:g}",
            {"ViT": 1},
            value="farthest",
            minus=100 * GLOBAL,
        ),
        Claim(
            "Hybrids show less local attention in the lowest layer.",
            "smallest attention distance of a head in the lowest layer, percent of uniform attention's, hybrid minus ViT",
            {"hybrid": 1, "ViT": -1},
            value="nearest",
            smallest=5.0,
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [Tuning(name, name, RATES) for name in ("ViT", "hybrid")],
    axes=Axes("layer", "layer", y_label="attention distance (% of uniform)"),
)
