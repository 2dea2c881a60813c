"""A recipe for other data, another batch, another length or another size of images, with a reason for every change.

batch_size   as set;   otherwise no more than there are images. A recipe counted in epochs also keeps 100 steps an epoch, as
             long as the batch need not fall below 64 for it
lr, lr_end,  SGD: in proportion to the batch; Adam: with its square root
sweep
steps        as set; or what its epochs come to on this data; or so many that as many images are seen as before
warmup       the same number of steps, but at most a tenth of the run, or the share of the published run if that is more
milestones   are shares of the run, and follow by themselves
preprocess,  the same operations, all sizes in proportion
evaluation

Where a learning rate belongs to a batch size: averaging k times as many gradients allows k times the step for SGD [Goyal et
al. 2017]. Adam divides by the gradient's root mean square, which for noisy gradients falls with the square root of the batch,
so that its steps grow by themselves and the rate follows with the square root alone [Malladi et al. 2022].
"""

from __future__ import annotations

import math
from collections.abc import Collection

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.training.recipes.recipe import Recipe, replace_fields
from vitreous.training.recipes.tables import published_steps, published_warmup

SMALLEST_BATCH = 64
STEPS_AN_EPOCH = 100
_WARMUP = 0.1
_MANY_EPOCHS = 2_000  # VTAB's 2,500 steps are 1,280 epochs of its thousand images


def fit(
    recipe: Recipe,
    *,
    images: int | None,
    batch_size: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    image_size: tuple[int, int] | None = None,
    keep: Collection[str] = (),
) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe for so many images, always with `steps`; and a sentence for each decision, which begins with its field.

    Of shards nobody may know how many images they have (None): then `steps` must be given, and the batch stays as it is.
    `keep` names the fields that somebody has set by hand: they stay as they are. To fit twice changes nothing more.
    """
    if steps is not None and epochs is not None:
        raise VitreousError(f"--steps {steps} and --epochs {epochs:g} contradict each other; give one of them")
    said: list[str] = []
    fitted = _batch(recipe, images, batch_size, keep, said)
    fitted = _length(recipe, fitted, images, steps, epochs, keep, said)
    fitted = _warmup(recipe, fitted, keep, said)
    if image_size is not None:
        fitted = _fit_images(fitted, image_size, keep, said)
    return fitted, tuple(said)


def sensible_batch(images: int, most: int) -> int:
    """The largest power of two that leaves a hundred steps an epoch, but 64 at least; of fewer images, no more than all."""
    if images < SMALLEST_BATCH:
        return min(most, _power_of_two(images))
    return min(most, max(SMALLEST_BATCH, _power_of_two(images / STEPS_AN_EPOCH)))


def plain(value: float) -> str:
    """A number for a sentence: three digits, and never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _power_of_two(most: float) -> int:
    return 1 << max(0, int(most).bit_length() - 1)


def _batch(recipe: Recipe, images: int | None, asked: int | None, keep: Collection[str], said: list[str]) -> Recipe:
    old = recipe.batch_size
    new, why = old if asked is None else asked, "as set"
    if asked is not None and images is not None and asked > images:
        why += f"; there are only {images:,} images, so that a step sees some of them more than once"
    elif asked is None and images is not None and "batch_size" not in keep:
        if recipe.epochs is not None:
            new = sensible_batch(images, old)
        elif old > images:
            new = _power_of_two(images)
        few_steps = f"{images:,} images would be only {plain(images / old)} steps an epoch, where ImageNet has 312"
        why = f"there are only {images:,} images" if old > images else few_steps
    if new == old:
        return recipe
    said.append(f"batch_size {old:,} -> {new:,}: {why}")
    return _rate(replace_fields(recipe, {"batch_size": new}), old, keep, said)


def _rate(recipe: Recipe, old_batch: int, keep: Collection[str], said: list[str]) -> Recipe:
    """Of a recipe that has its new batch already."""
    ratio = recipe.batch_size / old_batch
    factor = ratio if recipe.optimizer == "sgd" else math.sqrt(ratio)
    rule = "in proportion to the batch" if recipe.optimizer == "sgd" else "with the square root of the batch, as Adam's do"
    fields = [field for field in ("lr", "lr_end") if getattr(recipe, field) and not {"lr", field} & set(keep)]
    values: dict[str, object] = {field: _rounded(getattr(recipe, field) * factor) for field in fields}
    words = [f"{field} {getattr(recipe, field):g} -> {values[field]:g}" for field in fields]
    if recipe.sweep and "sweep" not in keep:
        values["sweep"] = tuple(_rounded(rate * factor) for rate in recipe.sweep)
        words.append("sweep alike")
    if words:
        said.append(f"{', '.join(words)}: learning rates go {rule}")
    return replace_fields(recipe, values)


def _rounded(value: float) -> float:
    """To four digits, so that people can read and repeat it."""
    return float(f"{value:.4g}")


def _length(
    recipe: Recipe,
    fitted: Recipe,
    images: int | None,
    steps: int | None,
    epochs: float | None,
    keep: Collection[str],
    said: list[str],
) -> Recipe:
    batch = fitted.batch_size
    if steps is not None:
        new, why = steps, f"as set, {_epochs(steps * batch / images)}" if images else "as set"
    elif images is None:
        raise VitreousError("the number of images is unknown, so the length must be in steps; give --steps")
    elif (times := epochs or recipe.epochs) is not None:
        new = max(1, round(times * images / batch))
        why = f"{times:g} epochs{' as set' if epochs else ''}, of {images:,} images, {batch:,} at a time"
        published = None if epochs else published_steps(recipe.name)
        if published and new * 10 <= published:
            why += f"; the published run had {published:,}, so consider more with --epochs or --steps"
    else:
        assert recipe.steps is not None
        new = recipe.steps if "steps" in keep else max(1, round(recipe.steps * recipe.batch_size / batch))
        why = f"as many images as before, {_epochs(new * batch / images)}"
    if new != recipe.steps:
        before = f"{recipe.steps:,}" if recipe.steps is not None else f"(epochs {recipe.epochs:g})"
        said.append(f"steps {before} -> {new:,}: {why}")
    counted_in_steps = steps is None and epochs is None and recipe.epochs is None
    if counted_in_steps and images and new * batch / images > _MANY_EPOCHS and "steps" not in keep:
        said.append(f"steps {new:,} are {_epochs(new * batch / images)}; consider fewer with --epochs or --steps")
    return replace_fields(fitted, {"steps": new})


def _epochs(count: float) -> str:
    return f"{plain(count)} epochs of this data"


def _warmup(recipe: Recipe, fitted: Recipe, keep: Collection[str], said: list[str]) -> Recipe:
    """Warm-up gives momentum and Adam's averages the steps they need to settle, so it is a number of steps, not a share."""
    assert fitted.steps is not None
    if "warmup" in keep:
        return fitted
    own = recipe.warmup / recipe.steps if recipe.steps else 0.0
    share = max(_WARMUP, published_warmup(recipe.name) or min(own, 0.5))
    new = min(fitted.warmup, round(share * fitted.steps))
    if new == fitted.warmup:
        return fitted
    said.append(f"warmup {fitted.warmup:,} -> {new:,}: no more than {share:.0%} of the run's {fitted.steps:,} steps")
    return replace_fields(fitted, {"warmup": new})


def _fit_images(recipe: Recipe, size: tuple[int, int], keep: Collection[str], said: list[str]) -> Recipe:
    strings = {field: Preprocess(getattr(recipe, field)) for field in ("preprocess", "evaluation") if field not in keep}
    values: dict[str, object] = {field: str(old.at(*size)) for field, old in strings.items() if old.size != size}
    words = [f"{field} {value}" for field, value in values.items()]
    side = size[0] if size[0] == size[1] else None
    if recipe.image_size != side:
        values["image_size"] = side
        words.insert(0, f"image_size {recipe.image_size} -> {side or f'{size[0]} x {size[1]}, which the strings say'}")
    if words:
        said.append(f"{', '.join(words)}: for images of {size[0]} x {size[1]}, all sizes in proportion")
    return replace_fields(recipe, values)
