"""Runs that the studies share: the same small models and the same plain recipe, so that arms differ in one thing."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from vitreous.models.cost import cost
from vitreous.studies.study import TUNED, Scale, Stage
from vitreous.training.options import Command

Fields = Mapping[str, Any]
RATES = (3e-4, 1e-3, 3e-3)  # tried for every family, on held-out training images


def vit(width: int, depth: int, **others: Any) -> Fields:
    """Fields of a small ViT: heads of 32, an MLP twice as wide as the tokens, as in appendix D.2."""
    return {"width": width, "depth": depth, "heads": max(1, width // 32), "mlp": 2 * width, **others}


def plain_stage(
    scale: Scale,
    command: Command,
    data: str,
    *,
    model: str | None = None,
    fields: Fields | None = None,
    family: str = "",
    images: int | None = None,
    recipe: Fields | None = None,
    **options: Any,
) -> Stage:
    """One run by Adam (appendix B.1): cosine decay after a tenth of warm-up, weight decay 0.1, shifted crops.

    `family` names whose trials choose the learning rate. `images`: seen in the run; else as many as the scale has.
    """
    size = int(options.pop("image_size", scale.image_size))
    steps = max(2, (images or scale.images) // scale.batch_size)
    changes = {
        "optimizer": "adam", "schedule": "cosine", "loss": "softmax", "weight_decay": 0.1, "decay": "kernels", "clip": 1.0,
        "warmup": steps // 10, "smoothing": 0.0, **({"lr": TUNED + family} if family else {}), **(recipe or {}),
    }  # fmt: skip
    given = {
        "data": data, "steps": steps, "batch_size": scale.batch_size, "image_size": size,
        "preprocess": f"resize({size})|pad({max(1, size // 8)})|random_crop({size})|range(-1,1)", **options,
    }  # fmt: skip
    if model is not None:
        given["model"] = model
    return Stage(command, given, {**changes, **{f"model.{name}": value for name, value in (fields or {}).items()}})


def scratch(scale: Scale, model: str, fields: Fields | None = None, family: str = "", **others: Any) -> Stage:
    """Training on DATA from random weights."""
    return plain_stage(scale, "pretrain", scale.data, model=model, fields=fields, family=family, **others)


def upstream(scale: Scale, model: str, fields: Fields | None = None, family: str = "", **others: Any) -> Stage:
    """Pre-training on the upstream data."""
    return plain_stage(scale, "pretrain", scale.upstream, model=model, fields=fields, family=family, **others)


def finetune(scale: Scale, family: str = "", **others: Any) -> Stage:
    """Fine-tuning the stage before on DATA."""
    return plain_stage(scale, "finetune", scale.data, family=family, **others)


# Three families of equal training FLOPs a step -------------------------------------------------------------------------


@functools.cache
def families(scale: Scale) -> dict[str, tuple[str, Fields]]:
    """A ResNet (BiT), and a ViT and a hybrid whose MLPs are as wide as makes their multiply-adds equal to the ResNet's."""
    resnet = {"units": (1, 1), "width": 32}
    target = cost("R26x1", scale.image_size, classes=10, channels=scale.channels, **resnet).macs
    # Behind the root, which downsamples by 4, patches of 2 where that leaves a grid worth the name.
    side = scale.image_size // 4
    hybrid = f"R+ViT-Ti/{4 if side % 2 == 0 and side >= 4 else 2}"
    return {
        "ResNet": ("R26x1", _as_text(resnet)),
        "ViT": (f"ViT-Ti/{scale.patch}", _match(scale, f"ViT-Ti/{scale.patch}", scale.depth + 2, {}, target)),
        "hybrid": (hybrid, _match(scale, hybrid, scale.depth, {"trunk_width": 32}, target)),
    }


def _match(scale: Scale, model: str, depth: int, others: Fields, target: int) -> Fields:
    """The fields whose MLP makes the model's multiply-adds `target`, which are linear in its width; with fewer layers where
    that would leave no MLP to speak of."""
    for layers in range(depth, 0, -1):
        fields = vit(64, layers, **others)
        shared = {"classes": 10, "channels": scale.channels, **fields}
        narrow, wide = (cost(model, scale.image_size, **{**shared, "mlp": mlp}).macs for mlp in (32, 64))
        mlp = round(32 + 32 * (target - narrow) / (wide - narrow))
        if mlp >= 64 or layers == 1:
            return {**fields, "mlp": max(8, mlp)}
    raise AssertionError


def _as_text(fields: Fields) -> Fields:
    return {name: "x".join(map(str, value)) if isinstance(value, tuple) else value for name, value in fields.items()}
