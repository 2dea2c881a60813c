"""Attention distance over depth (Figures 7 and 11, appendix D.7): ViT and hybrid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.studies.measures import GLOBAL
from vitreous.studies.stages import RATES, scratch, vit
from vitreous.studies.statistics import paired_t
from vitreous.studies.study import Arm, Axes, Claim, Point, Scale, Study, Tuning


def _arms(scale: Scale) -> list[Arm]:
    """Both have about 8 x 8 tokens and heads of 16; at the end of training and after a quarter of it."""
    fields = vit(scale.width, scale.depth, heads=max(2, scale.width // 16))
    hybrid = {**fields, "trunk_width": 32}  # its root downsamples by 4
    models = {"ViT": (f"ViT-Ti/{scale.fine_patch}", fields), "hybrid": ("R+ViT-Ti/2", hybrid)}
    return [
        Arm(f"{name}{after}", (scratch(scale, model, own, name, images=images),), {"family": f"{name}{after}"}, "distance")
        for name, (model, own) in models.items()
        for after, images in (("", scale.images // 2), (", a quarter of the run", scale.images // 8))
    ]


def _by_layer(rows: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The mean distance of each layer's heads, for every arm."""
    points = []
    for arm in dict.fromkeys(row["arm"] for row in rows if row["role"] == "main"):
        own = [row for row in rows if row["arm"] == arm and row["role"] == "main"]
        for layer in range(sum(name.startswith("layer_") and own[0][name] is not None for name in own[0])):
            mean = paired_t([100 * row[f"layer_{layer}"] for row in own])
            points.append(Point(arm, layer + 1, mean.effect, *((mean.low, mean.high) if mean.seeds > 1 else (None, None))))
    return points


STUDY = Study(
    name="distance",
    title="Attention distance in the lowest layer",
    paper="Figures 7 and 11, appendix D.7",
    sentence="Some heads attend to most of the image already in the lowest layer; hybrids show less localised attention.",
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
    axes=Axes("layer", "layer", y_label="mean attention distance (% of uniform)", log=False),
    points=_by_layer,
)
