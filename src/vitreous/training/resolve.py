"""From `TrainOptions` to a `RunConfig`: data, recipe, model and machine, each decision with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as replace_op
from typing import Any

import torch
from torch import Tensor

from vitreous.classifier import read_checkpoint
from vitreous.core.device import Precision, choose_device, choose_precision
from vitreous.core.distributed import World, broadcast
from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path
from vitreous.data.datasets import registry as named
from vitreous.data.source import Dataset, Source
from vitreous.data.transforms.image import PLAIN
from vitreous.data.transforms.ops import InceptionCrop, Resize, ResizeSmall, Scale
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.config import ModelConfig, ResNetConfig, ViTConfig, replace_config
from vitreous.models.cost import compute_cost
from vitreous.models.names import parse_name
from vitreous.training.build_options import model_fields, recipe_changes
from vitreous.training.config import Previous, RunConfig, RunRecord
from vitreous.training.data_split import SMALL, RunImages, choose_images
from vitreous.training.objectives.build import OBJECTIVES
from vitreous.training.options import TrainOptions
from vitreous.training.recipes import tables
from vitreous.training.recipes.automatic import automatic_finetune, automatic_pretrain, automatic_probe
from vitreous.training.recipes.fitting import fit
from vitreous.training.recipes.recipe import Recipe, from_json, replace_fields
from vitreous.weights.checkpoint import Checkpoint, file_hash
from vitreous.weights.locate import locate
from vitreous.weights.transfer import adapt, config_at

GUESSED = 1_000_000  # images in shards that do not say how many
_PROBES = ("head", "linear-probe")  # --train head, or the recipe of that name
EVALUATIONS = 10  # in a run, where --eval-every does not say


def resolve(
    options: TrainOptions,
    previous: Previous,
    world: World,
    dataset: Dataset | None = None,
    fitted: Recipe | None = None,
) -> RunConfig:
    """The config for these options, without micro-batch and threads (`fit_micro_batch`). `dataset`: see `choose_images`.

    `fitted`: a sweep's trials have fewer images, and are yet to train by the recipe of the run that they choose a rate for.
    """
    for_model = model_fields(options.set)
    changes = recipe_changes(options.set)
    as_set = [f"{name}={value}: as it was set" for name, value in changes.items()]
    before, replayed = previous
    extended = before is not None and (options.extend or before.extended)
    if before is not None and extended:  # what was fitted to the shorter run stays as it was
        changes.setdefault("warmup", before.recipe["warmup"])
    if before is not None and options.flops is not None and before.options.get("flops") == options.flops:
        changes["steps"] = before.recipe["steps"]  # counted once, before the first step
    patience = changes.get("patience", replayed.recipe.get("patience") if replayed else None)
    # The sigmoid loss learns from an image without labels too: it belongs to no class.
    unlabelled = changes.get("loss") == "sigmoid"
    images = choose_images(options, stop_early=patience is not None, dataset=dataset, unlabelled=unlabelled)
    checkpoint = _start(options)
    size, reason = _size(options, images, checkpoint, changes)
    width = (
        checkpoint.config.feature_width if checkpoint else _scratch_config(options, images, for_model, size, 0).feature_width
    )
    decisions: list[str] = []
    if fitted is not None:
        recipe = replace_fields(fitted, {"lr": changes["lr"]})
    else:
        recipe, decisions = _recipe(options, replayed, images, checkpoint, size, width, changes)
    model, tensors, model_notes = _model(options, recipe, images, checkpoint, for_model, size)
    device = choose_device(options.device)
    precision = _precision(options, device, world, before or replayed)
    reason = reason or (_size_cost(checkpoint, size) if checkpoint is not None else None)
    said = [*images.decisions, *([reason] if reason else []), *decisions, *as_set, *model_notes]
    said += [precision.note] if precision.note else []
    if recipe.average:
        said.append("the result is the Polyak average of the weights; checkpoint/raw holds the last weights themselves")
    return RunConfig(
        options=options,
        out=user_path(options.out),
        recipe=recipe,
        model=model,
        start=tensors,
        parent=_parent(options, checkpoint),
        licence=checkpoint.licence if checkpoint else None,
        train=images.train,
        held_out=images.held_out,
        test=images.test,
        data=images.described,
        classes=images.classes,
        images=images.count,
        device=device,
        precision=precision.name,
        eval_every=_eval_every(options, recipe, before if extended else None),
        decisions=tuple(said),
        begun=None if checkpoint is None else adapt(checkpoint, image_size=size),
        bad=images.bad,
    )


def _eval_every(options: TrainOptions, recipe: Recipe, shorter: RunRecord | None) -> int:
    if options.eval_every is not None:
        return options.eval_every
    if shorter is not None:
        return shorter.eval_every
    return max(1, (recipe.steps or 1) // EVALUATIONS)


def _precision(options: TrainOptions, device: str, world: World, before: RunRecord | None) -> Precision:
    """What the main rank found fast, for all; a run that is resumed or replayed keeps what it began with."""
    own = choose_precision(options.precision, device)
    name = broadcast(world, own.name)
    if before is not None and before.options.get("precision", "auto") == options.precision:
        name = before.precision
    return own if name == own.name else choose_precision(name, device)


# Recipe ----------------------------------------------------------------------------------------------------------------


def _recipe(
    options: TrainOptions,
    replayed: RunRecord | None,
    images: RunImages,
    checkpoint: Checkpoint | None,
    size: tuple[int, int],
    width: int,
    changes: dict[str, Any],
) -> tuple[Recipe, list[str]]:
    said: list[str] = []
    count = images.count
    if options.preprocess is not None:
        changes = {**changes, "preprocess": options.preprocess}
    if options.train is not None:
        changes = {**changes, "train": options.train}
    if replayed is not None and options.recipe == replayed.options.get("recipe"):
        recipe = from_json(replayed.recipe)
        said.append(f"recipe {recipe.name}, as it was fitted in {options.config}")
    elif (
        checkpoint is not None and options.recipe in (None, "linear-probe") and changes.get("train", options.recipe) in _PROBES
    ):
        counts = images.train.counts().tolist() if isinstance(images.train, Source) else ()
        string = str(Preprocess(checkpoint.preprocess).at(*size))
        recipe, why = automatic_probe(count or GUESSED, counts, images.labels, string)
        said += why
    elif options.recipe is not None:
        recipe = tables.find_recipe(options.recipe)
        said.append(f"recipe {recipe.name}: {recipe.about}")
    else:
        recipe, reasons = _automatic(options, images, size, width)
        said += reasons
        if checkpoint is not None:
            recipe = _prepared_as(checkpoint, recipe, size)
            if "evaluation" not in changes:
                said.append(f"evaluation {recipe.evaluation}: the checkpoint's own preprocessing")
    keep = {*changes}
    # `--set steps=` is `--steps`, whatever the recipe was counted in.
    steps = options.steps if options.steps is not None else changes.get("steps")
    epochs = options.epochs if options.epochs is not None else changes.get("epochs")
    changes = {name: value for name, value in changes.items() if name not in ("steps", "epochs")}
    if count is None and steps is None and options.flops is None:
        steps = recipe.steps
        if steps is None or epochs is not None:
            raise VitreousError(
                f"{options.data}: the number of images in these shards is unknown (no index.json); give --steps, not --epochs"
            )
    if checkpoint is not None:
        recipe = _with_scale(recipe, checkpoint, changes)
    recipe = replace_fields(recipe, changes)
    if "preprocess" in changes or "evaluation" in changes:
        recipe = _with_equal_scales(recipe, changes, said)
    if options.flops is not None and steps is None:
        batch_size = fit(recipe, images=count, batch_size=options.batch_size, steps=1, keep=keep)[0].batch_size
        model, _, _ = _model(options, recipe, images, checkpoint, model_fields(options.set), size)
        steps, reason = _count_steps(options.flops, model, batch_size)
        said.append(reason)
    fitted, reasons_ = fit(
        recipe,
        images=count,
        batch_size=options.batch_size,
        steps=steps,
        epochs=epochs,
        image_size=size,
        keep=keep,
    )
    for field in ("preprocess", "evaluation"):
        made = Preprocess(getattr(fitted, field))
        if made.size != size:
            raise VitreousError(
                f"{field}={getattr(fitted, field)!r} gives images of {_by(made.size)} pixels, and the model takes "
                f"{_by(size)}; change the string or --image-size"
            )
    return fitted, [*said, *reasons_]


def _count_steps(flops: float, model: ModelConfig, batch_size: int) -> tuple[int, str]:
    """As many as a budget of FLOPs allows."""
    each = compute_cost(model).training_flops(batch_size)
    if flops < each:
        raise VitreousError(
            f"--flops {flops:g}: one step of {batch_size:,} images takes {each:.3g}; give more, or a smaller --batch-size"
        )
    steps = int(flops // each)
    return steps, f"steps {steps:,}: {flops:g} FLOPs as asked, {each:.4g} for each step of {batch_size:,} images"


def _by(size: tuple[int, int] | None) -> str:
    return f"{size[0]} x {size[1]}" if size else "different sizes"


def _automatic(options: TrainOptions, images: RunImages, size: tuple[int, int], width: int) -> tuple[Recipe, list[str]]:
    count, name = images.count or GUESSED, images.train.where.partition("@")[0]  # a folder may be recognised as a known set
    name = named.find_dataset(name).name if named.is_known(name) else name  # in whichever spelling
    if OBJECTIVES[options.objective].classifies:
        known = tables.for_finetuning(name) if options.from_ else tables.for_pretraining(options.model or "", name)
        if known is not None:
            return known, [f"recipe {known.name}: {known.about}"]
    counts = images.train.counts().tolist() if isinstance(images.train, Source) else ()
    about: dict[str, Any] = dict(where=options.data, names=images.classes, labels=images.labels)
    if options.from_ is not None:
        about["batch_size"] = options.batch_size
        recipe, said = automatic_finetune(count, len(images.classes), size, images.size, counts, **about)
    else:
        recipe, said = automatic_pretrain(
            count, len(images.classes), size, images.size, counts, width=width, objective=options.objective, **about
        )
    if images.count is None:
        said = (f"nobody knows how many images these shards have: a recipe for {GUESSED:,} is taken", *said)
    return recipe, list(said)


def _with_equal_scales(recipe: Recipe, changes: Mapping[str, Any], said: list[str]) -> Recipe:
    """A model must be tested on pixel values like those that it learnt from."""
    training, evaluation = (Preprocess(text) for text in (recipe.preprocess, recipe.evaluation))
    if training.scales == evaluation.scales:
        return recipe
    if "evaluation" in changes:
        raise VitreousError(
            f"preprocess={training} and evaluation={evaluation} end in different pixel values; give both the same with "
            f"--preprocess and --set evaluation="
        )
    rescaled = _rescaled(evaluation, training.scales)
    said.append(f"evaluation {rescaled}: pixel values as in --preprocess")
    return replace_fields(recipe, {"evaluation": rescaled})


def _rescaled(preprocess: Preprocess, scales: tuple[Scale, ...]) -> str:
    return "|".join(str(op) for op in (*preprocess.pixel_ops, *scales))


def _with_scale(recipe: Recipe, checkpoint: Checkpoint, changes: Mapping[str, Any]) -> Recipe:
    """Pixel values as the checkpoint knows them: one that was trained on ImageNet's mean and deviation keeps them."""
    scales = Preprocess(checkpoint.preprocess).scales
    if not scales:
        return recipe
    fields = [field for field in ("preprocess", "evaluation") if field not in changes]
    return replace_fields(recipe, {field: _rescaled(Preprocess(getattr(recipe, field)), scales) for field in fields})


def _prepared_as(checkpoint: Checkpoint, recipe: Recipe, size: tuple[int, int]) -> Recipe:
    """Validated as the checkpoint is evaluated everywhere, and trained on pixels resized by the same filter."""
    evaluation = Preprocess(checkpoint.preprocess).at(*size)
    if evaluation.size is None:
        return recipe
    ops = Preprocess(recipe.preprocess).at(*size).ops
    for filter in [op.filter for op in evaluation.ops if isinstance(op, (Resize, ResizeSmall))][:1]:
        # Padding and RandAugment need the 8 bits that a plain resize leaves behind; the crop goes back to them.
        kinds = InceptionCrop if filter == PLAIN else (Resize, InceptionCrop)
        ops = tuple(replace_op(op, filter=filter) if isinstance(op, kinds) else op for op in ops)
    return replace_fields(recipe, {"preprocess": "|".join(map(str, ops)), "evaluation": str(evaluation)})


# Model -----------------------------------------------------------------------------------------------------------------


def _start(options: TrainOptions) -> Checkpoint | None:
    return None if options.from_ is None else read_checkpoint(options.from_)


def _size(
    options: TrainOptions, images: RunImages, checkpoint: Checkpoint | None, changes: Mapping[str, Any]
) -> tuple[tuple[int, int], str | None]:
    """Height and width of what the model will see."""
    if options.image_size is not None:
        return options.image_size, None
    if changes.get("image_size"):
        return (changes["image_size"],) * 2, None
    string = options.preprocess or changes.get("preprocess")
    if string and (given := Preprocess(string).size):
        return given, f"image size {given[0]} x {given[1]}: what the preprocessing gives"
    if options.recipe is not None and (side := tables.find_recipe(options.recipe).image_size):
        return (side, side), f"image size {side}: recipe {options.recipe}'s"
    if checkpoint is not None:
        return checkpoint.evaluation_size, None
    if images.size is not None and max(images.size) <= SMALL:
        return images.size, f"image size {images.size[0]} x {images.size[1]}: the images' own"
    return (224, 224), "image size 224: the paper's"


def _size_cost(checkpoint: Checkpoint, size: tuple[int, int]) -> str:
    """The size that the checkpoint is evaluated at, or one that was asked for; and what the larger of two costs."""
    own = checkpoint.evaluation_size
    step = checkpoint.config.step if isinstance(checkpoint.config, ViTConfig) else (1, 1)
    larger = (max(1, round(own[0] * 12 / 7 / step[0])) * step[0], max(1, round(own[1] * 12 / 7 / step[1])) * step[1])
    before, after = (compute_cost(config_at(checkpoint.config, each)).macs for each in (own, larger if size == own else size))
    if size == own:
        option = f"--image-size {larger[0]}" if larger[0] == larger[1] else f"--image-size {larger[0]},{larger[1]}"
        return f"image size {_by(size)}: the checkpoint's own; {option} would cost {after / before:.1f} times as much per image"
    return f"image size {_by(size)}: costs {after / before:.1f} times as much per image as the checkpoint's own, {_by(own)}"


def _model(
    options: TrainOptions,
    recipe: Recipe,
    images: RunImages,
    checkpoint: Checkpoint | None,
    overrides: Mapping[str, Any],
    size: tuple[int, int],
) -> tuple[ModelConfig, Mapping[str, Tensor] | None, list[str]]:
    objective = OBJECTIVES[recipe.objective]
    masked, classes = objective.masks_patches, len(images.classes) if objective.classifies else 0
    if checkpoint is None:
        return _from_scratch(options, recipe, images, overrides, size, classes)
    for name in overrides:
        if name not in ("dropout", "attention_dropout", "stochastic_depth"):
            raise VitreousError(
                f"--set model.{name}: the architecture is the checkpoint's; only dropout and depth rates can change"
            )
    if recipe.representation:
        raise VitreousError(
            f"recipe {recipe.name} adds a representation layer, which is for training from scratch; with --from, use "
            f"--set representation=no"
        )
    changed_ = adapt(checkpoint, image_size=size, classes=classes)
    config, tensors = changed_.config, dict(changed_.tensors)
    if classes and recipe.head_bias:
        config, tensors["head.bias"] = (
            replace_config(config, head_bias=recipe.head_bias),
            torch.full((classes,), recipe.head_bias),
        )
    _check_rates(config, recipe)
    if isinstance(config, ViTConfig):
        config = replace_config(config, dropout=recipe.dropout, stochastic_depth=recipe.stochastic_depth, mask_token=masked)
        if not masked:
            tensors.pop("mask_token", None)
        elif "mask_token" not in tensors:
            raise VitreousError(f"--from {options.from_}: has no mask token; masked patches are for --model, from scratch")
    if overrides:
        config = replace_config(config, **overrides)
    return config, tensors, list(changed_.notes)


def _from_scratch(
    options: TrainOptions, recipe: Recipe, images: RunImages, overrides: Mapping[str, Any], size: tuple[int, int], classes: int
) -> tuple[ModelConfig, None, list[str]]:
    masked, config = OBJECTIVES[recipe.objective].masks_patches, _scratch_config(options, images, overrides, size, classes)
    said = ["channels 1: the images are grey"] if config.channels == 1 and "channels" not in overrides else []
    bias = recipe.head_bias if classes else 0.0
    if isinstance(config, ResNetConfig):
        if masked:
            raise VitreousError(f"--objective {recipe.objective} needs patches; {config.name} has none")
        _check_rates(config, recipe)
        return replace_config(config, head_bias=bias), None, said
    config = replace_config(
        config,
        head_bias=bias,
        representation=config.width if recipe.representation and classes else config.representation,
        mask_token=masked,
        **({} if "dropout" in overrides else {"dropout": recipe.dropout}),
        **({} if "stochastic_depth" in overrides else {"stochastic_depth": recipe.stochastic_depth}),
    )
    return config, None, said


def _check_rates(config: ModelConfig, recipe: Recipe) -> None:
    if isinstance(config, ResNetConfig) and (recipe.dropout or recipe.stochastic_depth or recipe.representation):
        raise VitreousError(
            f"{config.name} has no dropout, stochastic depth or representation layer; use --set dropout=0,stochastic_depth=0,"
            f"representation=no"
        )


def _scratch_config(
    options: TrainOptions, images: RunImages, overrides: Mapping[str, Any], size: tuple[int, int], classes: int
) -> ModelConfig:
    assert options.model is not None
    return parse_name(options.model, classes=classes, image_size=size, **{"channels": images.channels, **overrides})


def _parent(options: TrainOptions, checkpoint: Checkpoint | None) -> dict[str, Any]:
    if checkpoint is None or options.from_ is None:
        return {}
    path = locate(options.from_).path
    places = [path / part / "model.safetensors" for part in ("", "checkpoint", "checkpoint/best")]
    weights = next((place for place in (*places, path) if place.is_file()), None)
    return {"source": options.from_, "sha256": file_hash(weights) if weights else None, "parent": dict(checkpoint.parent)}
