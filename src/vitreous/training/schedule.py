"""The learning rate of each step, as a pure function of the recipe: nothing to save, nothing to resume."""

from __future__ import annotations

import math

from vitreous.training.recipes.recipe import Recipe


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Of step 0 .. steps - 1, as the authors' code has it: the decay begins after the warm-up, and multiplies with it.

    They count from 1: the first step moves by lr / warmup and the last one by `lr_end`.
    """
    now = step + 1
    progress = min(1.0, max(0.0, (now - recipe.warmup) / max(1, steps - recipe.warmup)))
    if recipe.schedule == "linear":
        rate = recipe.lr_end + (recipe.lr - recipe.lr_end) * (1.0 - progress)
    elif recipe.schedule == "cosine":
        rate = recipe.lr_end + (recipe.lr - recipe.lr_end) * 0.5 * (1.0 + math.cos(math.pi * progress))
    elif recipe.schedule == "staircase":  # BiT-HyperRule: of the whole run, its warm-up included
        rate = recipe.lr * 0.1 ** sum(now > share * steps for share in recipe.milestones)
    else:
        rate = recipe.lr
    return rate * min(1.0, now / recipe.warmup) if recipe.warmup else rate
