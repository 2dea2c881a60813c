"""A recipe for other data, another batch, another length or another size of images, with a reason for every change.

batch_size   as asked; otherwise no more than there are images. A recipe counted in epochs also keeps 100 steps an epoch, as
             long as the batch need not fall below 64 for it
lr, lr_end,  SGD: in proportion to the batch; Adam: with its square root
sweep
steps        as asked; or what its epochs come to on this data; or so many that as many images are seen as before
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
    if images is not None and images < 1:
        raise VitreousError("there are no images to train on")
    if steps is not None and epochs is not None:
        raise VitreousError(f"--steps {steps} and --epochs {epochs:g} contradict each other; give one of them")
    said: list[str] = []
    fitted = _batch(recipe, images, batch_size, keep, said)
    fitted = _length(recipe, fitted, images, steps, epochs, keep, said)
    fitted = _warmup(recipe, fitted, keep, said)
    if image_size is not None:
        fitted = _pictures(fitted, image_size, keep, said)
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
    if asked is not None:
        if asked == old:
            return recipe
        said.append(f"batch_size {old:,} -> {asked:,}: as asked")
        if images is not None and asked > images:
            said[-1] += f"; there are only {images:,} images, so that a step sees some of them more than once"
        new = asked
    elif "batch_size" in keep or images is None:
        return recipe
    else:
        by_epochs = recipe.epochs is not None
        new = sensible_batch(images, old) if by_epochs else old if old <= images else _power_of_two(images)
        if new == old:
            return recipe
        why = f"there are only {images:,} images"
        if old <= images:
            why = f"{images:,} images would be only {plain(images / old)} steps an epoch, where ImageNet has 312"
        said.append(f"batch_size {old:,} -> {new:,}: {why}")
    return _rate(replace_fields(recipe, {"batch_size": new}), old, keep, said)


def _rate(recipe: Recipe, old_batch: int, keep: Collection[str], said: list[str]) -> Recipe:
    """Of a recipe that has its new batch already."""
    ratio = recipe.batch_size / old_batch
    factor = ratio if recipe.optimizer == "sgd" else math.sqrt(ratio)
    rule = "in proportion to the batch" if recipe.optimizer == "sgd" else "with the square root of the batch, as Adam's do"
    rates = () if "lr" in keep else ("lr", "lr_end")
    values: dict[str, object] = {}
    words = []
    for field in rates:
        old = getattr(recipe, field)
        if old and field not in keep:
            values[field] = _rounded(old * factor)
            words.append(f"{field} {old:g} -> {values[field]:g}")
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
        if steps != recipe.steps:
            seen = f"as asked, {_epochs(steps * batch / images)}" if images else "as asked"
            said.append(f"steps {_before(recipe)} -> {steps:,}: {seen}")
        return replace_fields(fitted, {"steps": steps})
    if images is None:
        raise VitreousError("nobody knows how many images there are, so that a run can only be counted in steps; give --steps")
    if epochs is not None:
        new = _steps(epochs, images, batch)
        if new != recipe.steps:
            said.append(
                f"steps {_before(recipe)} -> {new:,}: {epochs:g} epochs as asked, of {images:,} images, {batch:,} at a time"
            )
        return replace_fields(fitted, {"steps": new})
    if recipe.epochs is not None:
        new = _steps(recipe.epochs, images, batch)
        said.append(f"steps {new:,} for epochs {recipe.epochs:g}: of {images:,} images, {batch:,} at a time")
        published = published_steps(recipe.name)
        if published and new * 10 <= published:
            said[-1] += f"; the published run had {published:,}, so consider more with --epochs or --steps"
        return replace_fields(fitted, {"steps": new})
    assert recipe.steps is not None
    if batch != recipe.batch_size and "steps" not in keep:
        new = max(1, round(recipe.steps * recipe.batch_size / batch))
        said.append(f"steps {recipe.steps:,} -> {new:,}: as many images as before, {_epochs(new * batch / images)}")
        fitted = replace_fields(fitted, {"steps": new})
    assert fitted.steps is not None
    passes = fitted.steps * batch / images
    if passes > _MANY_EPOCHS and "steps" not in keep:
        said.append(f"steps {fitted.steps:,} are {_epochs(passes)}; consider fewer with --epochs or --steps")
    return fitted


def _steps(epochs: float, images: int, batch: int) -> int:
    return max(1, round(epochs * images / batch))


def _before(recipe: Recipe) -> str:
    return f"{recipe.steps:,}" if recipe.steps is not None else f"(epochs {recipe.epochs:g})"


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


def _pictures(recipe: Recipe, size: tuple[int, int], keep: Collection[str], said: list[str]) -> Recipe:
    values: dict[str, object] = {}
    words = []
    for field in ("preprocess", "evaluation"):
        old = Preprocess(getattr(recipe, field))
        if field not in keep and old.size != size:
            values[field] = str(old.at(*size))
            words.append(f"{field} {values[field]}")
    side = size[0] if size[0] == size[1] else None
    if recipe.image_size != side:
        values["image_size"] = side
        words.insert(0, f"image_size {recipe.image_size} -> {side or f'{size[0]} x {size[1]}, which the strings say'}")
    if words:
        said.append(f"{', '.join(words)}: for images of {size[0]} x {size[1]}, all sizes in proportion")
    return replace_fields(recipe, values)
