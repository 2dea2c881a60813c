"""The model of a run and the size of its images: a checkpoint's, changed for the data, or one from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.config import ModelConfig, ResNetConfig, ViTConfig, replace_config
from vitreous.models.cost import compute_cost
from vitreous.models.names import parse_name
from vitreous.training.build_options import model_fields
from vitreous.training.data_split import SMALL, RunImages
from vitreous.training.objectives.build import OBJECTIVES
from vitreous.training.options import TrainOptions
from vitreous.training.recipes import tables
from vitreous.training.recipes.recipe import Recipe
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.transfer import adapt, config_at

_RATES = ("dropout", "attention_dropout", "stochastic_depth")


def choose_size(
    options: TrainOptions, images: RunImages, checkpoint: Checkpoint | None, changes: Mapping[str, Any]
) -> tuple[tuple[int, int], str | None]:
    """Height and width of what the model will see, and why."""
    size, reason = _size(options, images, checkpoint, changes)
    return size, reason or (None if checkpoint is None else _size_cost(checkpoint, size))


def _size(
    options: TrainOptions, images: RunImages, checkpoint: Checkpoint | None, changes: Mapping[str, Any]
) -> tuple[tuple[int, int], str | None]:
    """Height and width of what the model will see."""
    if (given := given_size(options, changes)) is not None:
        return given
    if checkpoint is not None:
        return checkpoint.evaluation_size, None
    if images.size is not None and max(images.size) <= SMALL:
        return images.size, f"image size {images.size[0]} x {images.size[1]}: the images' own"
    return (224, 224), "image size 224: the paper's"


def given_size(options: TrainOptions, changes: Mapping[str, Any]) -> tuple[tuple[int, int], str | None] | None:
    """A size that an option, a string or a recipe names; nothing where it is for the data, the checkpoint or the budget."""
    if options.image_size is not None:
        return options.image_size, None
    if changes.get("image_size"):
        return (changes["image_size"],) * 2, None
    string = options.preprocess or changes.get("preprocess")
    if string and (size := Preprocess(string).size):
        return size, f"image size {size[0]} x {size[1]}: what the preprocessing gives"
    if options.recipe is not None and (side := tables.find_recipe(options.recipe).image_size):
        return (side, side), f"image size {side}: recipe {options.recipe}'s"
    return None


def _size_cost(checkpoint: Checkpoint, size: tuple[int, int]) -> str:
    """The size that the checkpoint is evaluated at, or one that was asked for; and what the larger of two costs."""
    own = checkpoint.evaluation_size
    step = checkpoint.config.step if isinstance(checkpoint.config, ViTConfig) else (1, 1)
    larger = (max(1, round(own[0] * 12 / 7 / step[0])) * step[0], max(1, round(own[1] * 12 / 7 / step[1])) * step[1])
    before, after = (compute_cost(config_at(checkpoint.config, each)).macs for each in (own, larger if size == own else size))
    shown, usual = (f"{height} x {width}" for height, width in (size, own))
    if size == own:
        option = f"--image-size {larger[0]}" if larger[0] == larger[1] else f"--image-size {larger[0]},{larger[1]}"
        return f"image size {shown}: the checkpoint's own; {option} would cost {after / before:.1f} times as much per image"
    return f"image size {shown}: costs {after / before:.1f} times as much per image as the checkpoint's own, {usual}"


def choose_model(
    options: TrainOptions,
    recipe: Recipe,
    images: RunImages,
    checkpoint: Checkpoint | None,
    overrides: Mapping[str, Any],
    size: tuple[int, int],
) -> tuple[ModelConfig, Mapping[str, Tensor] | None, list[str]]:
    """Its config, the weights that it begins with unless it is drawn at random, and what there is to say."""
    objective = OBJECTIVES[recipe.objective]
    masked, classes = objective.masks_patches, len(images.classes) if objective.classifies else 0
    said, tensors = [], None
    if checkpoint is None:
        config = _scratch_config(options, images, overrides, size, classes)
        if config.channels == 1 and "channels" not in overrides:
            said = ["channels 1: the images are grey"]
    else:
        _check_transfer(recipe, overrides)
        adapted = adapt(checkpoint, image_size=size, classes=classes)
        config, tensors, said = adapted.config, dict(adapted.tensors), list(adapted.notes)
    if classes and (recipe.head_bias or checkpoint is None):
        config = replace_config(config, head_bias=recipe.head_bias)
        if tensors is not None:
            tensors["head.bias"] = torch.full((classes,), recipe.head_bias)
    if isinstance(config, ResNetConfig):
        if masked:
            raise VitreousError(f"--objective {recipe.objective} needs patches; {config.name} has none")
        if recipe.dropout or recipe.stochastic_depth or recipe.representation or not overrides.keys().isdisjoint(_RATES):
            raise VitreousError(
                f"{config.name} has no dropout, stochastic depth or representation layer; use --set dropout=0,"
                f"stochastic_depth=0,representation=no"
            )
        return config, tensors, said
    rates = {"dropout": recipe.dropout, "stochastic_depth": recipe.stochastic_depth}
    rates |= {name: overrides[name] for name in _RATES if name in overrides}
    config = replace_config(config, mask_token=masked, **rates)
    if recipe.representation and classes:
        config = replace_config(config, representation=config.width)
    if tensors is not None and not masked:
        tensors.pop("mask_token", None)
    elif tensors is not None and "mask_token" not in tensors:
        raise VitreousError(f"--from {options.from_}: has no mask token; masked patches are for --model, from scratch")
    return config, tensors, said


def _check_transfer(recipe: Recipe, overrides: Mapping[str, Any]) -> None:
    for name in overrides:
        if name not in _RATES:
            raise VitreousError(
                f"--set model.{name}: the architecture is the checkpoint's; only dropout and depth rates can change"
            )
    if recipe.representation:
        raise VitreousError(
            f"recipe {recipe.name} adds a representation layer, which is for training from scratch; with --from, use "
            f"--set representation=no"
        )


def scratch_shape(options: TrainOptions, images: RunImages, size: tuple[int, int]) -> dict[str, Any]:
    """Of a model from scratch: how wide its features are, and whether it has a convolutional stem."""
    config = _scratch_config(options, images, model_fields(options.set), size, 0)
    return {"width": config.feature_width, "stem": isinstance(config, ViTConfig) and bool(config.stem)}


def _scratch_config(
    options: TrainOptions, images: RunImages, overrides: Mapping[str, Any], size: tuple[int, int], classes: int
) -> ModelConfig:
    assert options.model is not None
    return parse_name(options.model, classes=classes, image_size=size, **{"channels": images.channels, **overrides})
