"""From `TrainOptions` to a `RunConfig`: data, recipe, model and machine, each decision with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitreous.classifier import describe_parent, read_checkpoint
from vitreous.core.device import Precision, choose_device, choose_precision
from vitreous.core.distributed import World, broadcast
from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path
from vitreous.data.source import Dataset
from vitreous.training.alternatives import Alternative, describe_choice, list_alternatives
from vitreous.training.auto_model import expectation
from vitreous.training.batch_fitting import fit_micro_batch
from vitreous.training.build_options import model_fields, recipe_changes
from vitreous.training.choose_model import choose_model, choose_size
from vitreous.training.choose_recipe import GUESSED, choose_recipe
from vitreous.training.config import EVALUATIONS, Previous, RunConfig, RunRecord
from vitreous.training.data_split import RunImages, choose_images
from vitreous.training.distillation import describe_teacher
from vitreous.training.fewshot_along import open_fewshot
from vitreous.training.options import TrainOptions
from vitreous.training.recipes.recipe import Recipe, replace_fields
from vitreous.training.timing import Length, fit_into_minutes
from vitreous.weights.transfer import adapt


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
    changes = recipe_changes(options.set)
    as_set = [f"{name}={value}: as it was set" for name, value in changes.items()]
    before, replayed = previous
    extends = before is not None and (options.extend or before.extended)
    if before is not None and extends:  # what was fitted to the shorter run stays as it was
        changes.setdefault("warmup", before.recipe["warmup"])
    eval_every = None
    for name, record in (("flops", before), ("minutes", before or replayed)):
        asked = getattr(options, name)
        if asked is not None and record is not None and record.options.get(name) == asked:
            changes["steps"] = record.recipe["steps"]  # counted once, before the first step
            eval_every = record.eval_every
    patience = changes.get("patience", replayed.recipe.get("patience") if replayed else None)
    # The sigmoid loss learns from an image without labels too: it belongs to no class.
    unlabelled = changes.get("loss") == "sigmoid"
    images = choose_images(options, stop_early=patience is not None, dataset=dataset, unlabelled=unlabelled)
    count = images.count or GUESSED
    alternatives = list_alternatives(options, before, images, count, changes)
    for alternative in alternatives:
        try:
            config = _try(alternative, previous, world, images, changes, as_set, eval_every, fitted)
        except VitreousError:  # perhaps because not one step of it fits into the budget
            if alternative is alternatives[-1]:
                raise
            continue
        seen = config.steps * config.recipe.batch_size
        if seen >= alternative.images:
            break
    said = [describe_choice(alternatives, config.model, seen)]
    if options.model == "auto":
        said.append(expectation(config.model, count, seen))
    return replace(config, decisions=(*config.decisions, *filter(None, said)))


def _try(
    alternative: Alternative,
    previous: Previous,
    world: World,
    images: RunImages,
    changes: Mapping[str, Any],
    as_set: Sequence[str],
    eval_every: int | None,
    fitted: Recipe | None,
) -> RunConfig:
    """The config of the run with this model and size; with --minutes its steps are timed."""
    options, notes = alternative.options, list(as_set)
    if alternative.reason is not None:
        notes.append(alternative.reason)
    if options.minutes is not None and fitted is None and "steps" not in changes:
        length = _fit_into_minutes(options, previous, world, images, changes)
        changes, eval_every = {**changes, "steps": length.steps}, length.eval_every
        notes.append(length.reason)
    return _decide(options, previous, world, images, changes, notes, eval_every, fitted)


def _fit_into_minutes(
    options: TrainOptions, previous: Previous, world: World, images: RunImages, changes: Mapping[str, Any]
) -> Length:
    trial = _decide(options, previous, world, images, {**changes, "steps": 1}, ())
    assert options.minutes is not None
    return fit_into_minutes(fit_micro_batch(trial, options, previous, world), options.minutes, world)


def _decide(
    options: TrainOptions,
    previous: Previous,
    world: World,
    images: RunImages,
    changes: Mapping[str, Any],
    as_set: Sequence[str],
    eval_every: int | None = None,
    fitted: Recipe | None = None,
) -> RunConfig:
    """Everything else, for these images; with --minutes, `changes` has the steps, and they came with `eval_every`."""
    before, replayed = previous
    extends = before is not None and (options.extend or before.extended)
    checkpoint = None if options.from_ is None else read_checkpoint(options.from_)
    size, size_reason = choose_size(options, images, checkpoint, changes)
    decisions: list[str] = []
    if fitted is not None:
        recipe = replace_fields(fitted, {"lr": changes["lr"]})
    else:
        recipe, decisions = choose_recipe(options, replayed, images, checkpoint, size, changes)
    model, tensors, model_notes = choose_model(options, recipe, images, checkpoint, model_fields(options.set), size)
    teacher = None if options.teacher is None else read_checkpoint(options.teacher)
    if options.teacher is not None and teacher is not None:
        decisions.append(describe_teacher(options.teacher, teacher, images.classes))
    device = choose_device(options.device)
    precision = _precision(options, device, world, before or replayed)
    reasons = [*images.decisions, size_reason, *decisions, *as_set, *model_notes, precision.note]
    fewshot = open_fewshot(options)
    reasons += fewshot.notes if fewshot is not None else ()
    if recipe.average:
        reasons.append("the result is the Polyak average of the weights; checkpoint/raw holds the last weights themselves")
    if before is not None and extends:
        eval_every = before.eval_every
    elif eval_every is None:
        eval_every = max(1, (recipe.steps or 1) // EVALUATIONS)
    return RunConfig(
        options=options,
        out=user_path(options.out),
        recipe=recipe,
        model=model,
        start=tensors,
        parent={} if checkpoint is None or options.from_ is None else describe_parent(options.from_, checkpoint),
        licence=checkpoint.licence if checkpoint else None,
        train=images.train,
        held_out=images.held_out,
        test=images.test,
        data=images.described,
        classes=images.classes,
        images=images.count,
        fewshot=fewshot,
        device=device,
        precision=precision.name,
        eval_every=eval_every if options.eval_every is None else options.eval_every,
        decisions=tuple(filter(None, reasons)),
        teacher=teacher,
        begun=None if checkpoint is None else adapt(checkpoint, image_size=size),
        bad=images.bad,
    )


def _precision(options: TrainOptions, device: str, world: World, before: RunRecord | None) -> Precision:
    """What the main rank found fast, for all; a run that is resumed or replayed keeps what it began with."""
    own = choose_precision(options.precision, device)
    name = broadcast(world, own.name)
    if before is not None and before.options.get("precision", "auto") == options.precision:
        name = before.precision
    return own if name == own.name else choose_precision(name, device)
