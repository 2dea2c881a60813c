"""The recipe of a run: replayed, by its name, or one for the data; changed by `--set`, and fitted to data and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as replace_op
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.data.datasets import registry as named
from vitreous.data.source import Source
from vitreous.data.transforms.image import PLAIN
from vitreous.data.transforms.ops import InceptionCrop, Resize, ResizeSmall, Scale
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.config import ModelConfig, ViTConfig
from vitreous.models.cost import compute_cost
from vitreous.training.build_options import model_fields
from vitreous.training.choose_model import choose_model, scratch_shape
from vitreous.training.config import RunRecord
from vitreous.training.data_split import RunImages
from vitreous.training.objectives.build import OBJECTIVES
from vitreous.training.options import Train, TrainOptions
from vitreous.training.recipes import tables
from vitreous.training.recipes.automatic import automatic_finetune, automatic_pretrain, automatic_probe
from vitreous.training.recipes.fitting import fit
from vitreous.training.recipes.recipe import Recipe, from_json, replace_fields
from vitreous.weights.checkpoint import Checkpoint

LORA_WIDTH, LORA_IMAGES = 192, 20_000  # docs/log.md; not measured with more images
TINY_LORA = "LoRA lost on a model 32 wide: 87.5 % of digits right, 89.5 % with --train all"  # docs/log.md
GUESSED = 1_000_000  # images in shards that do not say how many
_PROBES = ("head", "linear-probe")  # --train head, or the recipe of that name


def choose_recipe(
    options: TrainOptions,
    replayed: RunRecord | None,
    images: RunImages,
    checkpoint: Checkpoint | None,
    size: tuple[int, int],
    changes: Mapping[str, Any],
) -> tuple[Recipe, list[str]]:
    """The recipe with `steps` and strings for this size, and a sentence for each decision."""
    given = {name: value for name in ("preprocess", "train") if (value := getattr(options, name)) is not None}
    changes = {**changes, **given}
    recipe, said = _find_recipe(options, replayed, images, checkpoint, size, changes)
    # `--set steps=` is `--steps`, whatever the recipe was counted in.
    lengths = {name: getattr(options, name) or changes.get(name) for name in ("steps", "epochs")}
    values = {name: value for name, value in changes.items() if name not in lengths}
    if images.count is None and lengths["steps"] is None and options.flops is None:
        lengths["steps"] = recipe.steps
        if recipe.steps is None or lengths["epochs"] is not None:
            raise VitreousError(
                f"{options.data}: the number of images in these shards is unknown (no index.json); give --steps, not --epochs"
            )
    scales = Preprocess(checkpoint.preprocess).scales if checkpoint is not None else ()
    if scales:  # pixel values as the checkpoint knows them: trained on ImageNet's mean and deviation, it keeps them
        fields = [field for field in ("preprocess", "evaluation") if field not in changes]
        values = {field: _rescaled(Preprocess(getattr(recipe, field)), scales) for field in fields} | values
    recipe = replace_fields(recipe, values)
    if "preprocess" in changes or "evaluation" in changes:
        recipe = _with_equal_scales(recipe, changes, said)
    if options.flops is not None and lengths["steps"] is None:
        batch_size = fit(recipe, images=images.count, batch_size=options.batch_size, steps=1, keep=changes)[0].batch_size
        model, _, _ = choose_model(options, recipe, images, checkpoint, model_fields(options.set), size)
        lengths["steps"], reason = _count_steps(options.flops, model, batch_size)
        said.append(reason)
    recipe, reasons = fit(
        recipe, images=images.count, batch_size=options.batch_size, image_size=size, keep=changes.keys(), **lengths
    )
    for field in ("preprocess", "evaluation"):
        made = Preprocess(getattr(recipe, field))
        if made.size != size:
            gives = f"{made.size[0]} x {made.size[1]}" if made.size else "different sizes"
            raise VitreousError(
                f"{field}={getattr(recipe, field)!r} gives images of {gives} pixels, and the model takes "
                f"{size[0]} x {size[1]}; change the string or --image-size"
            )
    return recipe, [*said, *reasons]


def _find_recipe(
    options: TrainOptions,
    replayed: RunRecord | None,
    images: RunImages,
    checkpoint: Checkpoint | None,
    size: tuple[int, int],
    changes: Mapping[str, Any],
) -> tuple[Recipe, list[str]]:
    """As it was replayed, a linear probe, by its name, by the name of the data, or one for data that no table knows."""
    if replayed is not None and options.recipe == replayed.options.get("recipe"):
        recipe = from_json(replayed.recipe)
        return recipe, [f"recipe {recipe.name}, as it was fitted in {options.config}"]
    count, counts = images.count or GUESSED, images.train.counts().tolist() if isinstance(images.train, Source) else ()
    if checkpoint is not None and options.recipe in (None, "linear-probe") and changes.get("train", options.recipe) in _PROBES:
        recipe, said = automatic_probe(count, counts, images.labels, str(Preprocess(checkpoint.preprocess).at(*size)))
        return recipe, list(said)
    if options.recipe is not None:
        recipe = tables.find_recipe(options.recipe)
        return recipe, [f"recipe {recipe.name}: {recipe.about}"]
    name = images.train.where.partition("@")[0]  # a folder may be recognised as a known set
    name = named.find_dataset(name).name if named.is_known(name) else name  # in whichever spelling
    known = None
    if OBJECTIVES[options.objective].classifies:
        known = tables.for_finetuning(name) if options.from_ else tables.for_pretraining(options.model or "", name)
    about: dict[str, Any] = dict(where=options.data, names=images.classes, labels=images.labels)
    if known is not None:
        recipe, said = known, (f"recipe {known.name}: {known.about}",)
    elif checkpoint is not None:
        stem = isinstance(checkpoint.config, ViTConfig) and bool(checkpoint.config.stem)
        train = changes.get("train") or _what_learns(options, checkpoint, count)
        about |= {"batch_size": options.batch_size, "train": train, "stem": stem}
        recipe, said = automatic_finetune(count, len(images.classes), size, images.size, counts, **about)
        if recipe.train == "lora" and (width := checkpoint.config.feature_width) < LORA_WIDTH:
            said = (*said, f"{TINY_LORA}; this one is {width} wide, so consider --train all")
    else:
        about |= {**scratch_shape(options, images, size), "objective": options.objective}
        recipe, said = automatic_pretrain(count, len(images.classes), size, images.size, counts, **about)
    if known is None and images.count is None:
        said = (f"the shards do not say how many images they hold: the recipe is that for {GUESSED:,}", *said)
    if checkpoint is not None:
        recipe = _prepared_as(checkpoint, recipe, size)
        if "evaluation" not in changes:
            said = (*said, f"evaluation {recipe.evaluation}: the checkpoint's own preprocessing")
    return recipe, list(said)


def _what_learns(options: TrainOptions, checkpoint: Checkpoint, images: int) -> Train:
    """LoRA where it was measured to be better: a Vision Transformer that is not tiny, and few images to learn from."""
    vit = isinstance(checkpoint.config, ViTConfig) and checkpoint.config.width >= LORA_WIDTH
    plain = options.parallel == "ddp" and options.engine != "compile"  # factors are merged to validate
    return "lora" if vit and plain and images < LORA_IMAGES else "all"


def _count_steps(flops: float, model: ModelConfig, batch_size: int) -> tuple[int, str]:
    """As many as a budget of FLOPs allows."""
    each = compute_cost(model).training_flops(batch_size)
    if flops < each:
        raise VitreousError(
            f"--flops {flops:g}: one step of {batch_size:,} images takes {each:.3g}; give more, or a smaller --batch-size"
        )
    steps = int(flops // each)
    return steps, f"steps {steps:,}: --flops {flops:g}, {each:.4g} for each step of {batch_size:,} images"


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
