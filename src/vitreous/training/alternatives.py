"""What `--minutes` or `--flops` chooses among: models and image sizes, the largest with which each image is seen often enough.

More pixels and a larger model cost as much as more passes over the images, and in a short run the passes are worth more
(docs/log.md). Without a budget it is the first alternative. A run that is resumed keeps what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitreous.classifier import read_checkpoint
from vitreous.models.config import ModelConfig, ViTConfig
from vitreous.training.auto_model import auto_models
from vitreous.training.choose_model import choose_size, given_size
from vitreous.training.config import RunRecord
from vitreous.training.data_split import RunImages
from vitreous.training.objectives.build import OBJECTIVES
from vitreous.training.options import TrainOptions

_PRETRAIN_EPOCHS, _FINETUNE_EPOCHS = 10, 2
_FINETUNE_IMAGES = 10_000  # of more images, so many passes over these are enough
_SIDES = (224, 160, 112, 64)  # pixels of photographs, from scratch
_SHARES = (1, 3 / 4, 1 / 2)  # of a checkpoint's own size
_SMALLEST, _FEWEST_PLACES = 96, 7  # pixels and patches of a side


@dataclass(frozen=True)
class Alternative:
    options: TrainOptions
    images: int = 0  # that the budget is to show, or a smaller one is taken
    reason: str | None = None  # of its model


def list_alternatives(
    options: TrainOptions, resumed: RunRecord | None, images: RunImages, count: int, changes: Mapping[str, Any]
) -> list[Alternative]:
    """The largest first."""
    budget = options.minutes is not None or options.flops is not None
    auto = options.model == "auto"
    if resumed is not None and (auto or budget):
        kept = resumed.options.get("image_size")
        same = options if options.image_size or kept is None else replace(options, image_size=tuple(kept))
        model = resumed.options.get("model")
        return [Alternative(replace(same, model=model), reason=f"model {model}: as it was") if auto else Alternative(same)]
    sizes = _sizes(options, images, changes) if budget else []
    sized = [replace(options, image_size=size) for size in sizes] or [options]
    if not auto:
        return [Alternative(each, _FINETUNE_EPOCHS * min(count, _FINETUNE_IMAGES)) for each in sized]
    found = []
    for each in sized:
        names, why = auto_models(
            choose_size(each, images, None, changes)[0], count, OBJECTIVES[options.objective].masks_patches
        )
        found += [Alternative(replace(each, model=name), _PRETRAIN_EPOCHS * count, f"model {name}: {why}") for name in names]
    return found if budget else found[:1]


def _sizes(options: TrainOptions, images: RunImages, changes: Mapping[str, Any]) -> list[tuple[int, int]]:
    """For images without a size of their own, where nobody has given one; otherwise none."""
    if images.count is None or given_size(options, changes) is not None or OBJECTIVES[options.objective].masks_patches:
        return []
    if options.from_ is None:
        largest = (_SIDES[0], _SIDES[0])
        photographs = options.model == "auto" and choose_size(options, images, None, changes)[0] == largest
        return [(side, side) for side in _SIDES] if photographs else []
    checkpoint = read_checkpoint(options.from_)
    height, width = checkpoint.evaluation_size
    down, across = checkpoint.config.step if isinstance(checkpoint.config, ViTConfig) else (1, 1)
    sizes = [(round(share * height / down) * down, round(share * width / across) * across) for share in _SHARES]
    fits = [
        (tall, wide)
        for tall, wide in sizes[1:]
        if min(tall, wide) >= _SMALLEST and min(tall // down, wide // across) >= _FEWEST_PLACES
    ]
    return [(height, width), *fits] if fits else []


def describe_choice(alternatives: Sequence[Alternative], chosen: ModelConfig, seen: int) -> str | None:
    """Why it is this image size, where there were several."""
    sizes = list(dict.fromkeys(alternative.options.image_size for alternative in alternatives))
    if len(sizes) < 2:
        return None
    *all_sizes, own = (_format_size(size) for size in (*sizes, chosen.image_size) if size is not None)
    return (
        f"image size {own}: of {', '.join(all_sizes)} the largest at which the budget shows {alternatives[0].images:,} images, "
        f"or the smallest; here it shows {seen:,}. --image-size {all_sizes[0]} keeps the largest"
    )


def _format_size(size: tuple[int, int]) -> str:
    return f"{size[0]}" if size[0] == size[1] else f"{size[0]},{size[1]}"
