"""One run as its user sees it: what was decided is said, learning rates are tried if asked, then it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path
from vitreous.core.progress import say
from vitreous.training.batch_fitting import fit_micro_batch
from vitreous.training.config import config_json
from vitreous.training.loop import Diverged
from vitreous.training.options import TrainOptions
from vitreous.training.recipes.recipe import parse_set
from vitreous.training.resolve import resolve
from vitreous.training.run_folder import RunFolder, recorded_config
from vitreous.training.trainer import Finished, train


def run_training(asked: TrainOptions, replayed: Mapping[str, Any] | None, world: World) -> Finished:
    """Train as asked, or go on with it."""
    said: tuple[str, ...] = ()
    if asked.sweep:
        asked, sentence = _swept(asked, replayed, world)
        said = (sentence,)
    goes_on = recorded_config(user_path(asked.out)) is not None
    plan = fit_micro_batch(resolve(asked, replayed, world), asked, world, replayed)
    plan = replace(plan, decisions=(*plan.decisions, *said))
    if not goes_on:
        _say(world, plan.decisions)
    return train(plan, world)


def _swept(asked: TrainOptions, replayed: Mapping[str, Any] | None, world: World) -> tuple[TrainOptions, str]:
    """The paper's way to a learning rate: each is tried on the training images but a share, and judged by that share.

    Each trial is a run of its own in OUT/sweep, so that a sweep that was interrupted goes on too.
    """
    changes = parse_set(asked.set)
    if "lr" in changes:
        raise VitreousError(f"--sweep chooses the learning rate, and --set lr={changes['lr']} gives it; leave one of them out")
    asked = replace(asked, sweep=False)
    whole = resolve(asked, replayed, world)
    recipe = whole.recipe
    if recipe.objective != "classification":
        raise VitreousError(f"--sweep chooses by accuracy, and recipe {recipe.name} learns no classes; use --set lr=")
    if not recipe.sweep:
        raise VitreousError(
            f"--sweep: recipe {recipe.name} names no learning rates; give them with --set sweep=0.001:0.003:0.01"
        )
    undecided = ("recipe.lr", "micro_batch")
    RunFolder(whole.out, world).check(config_json(whole, world.world_size), asked.extend, undecided)
    found: dict[float, tuple[float, float]] = {}  # accuracy and, among equals, the lower loss
    for rate in recipe.sweep:
        trial = replace(
            asked,
            out=str(Path(asked.out) / "sweep" / f"lr-{rate:g}"),
            sweep_share=recipe.sweep_share,
            set=(*asked.set, f"lr={rate!r}"),
        )
        _say(world, (f"sweep: lr {rate:g}, judged by {recipe.sweep_share:.0%} of the training images",))
        plan = fit_micro_batch(resolve(trial, replayed, world, fitted=recipe), trial, world, replayed)
        if plan.held_out is None:
            raise VitreousError("--sweep: there are too few images to hold any out; choose a learning rate with --set lr=")
        try:
            result = train(plan if not found else replace(plan, begun=None), world).result
            found[rate] = float(result["top1"]), -float(result["loss"])
        except Diverged as error:
            found[rate] = -1.0, 0.0
            _say(world, (f"sweep: lr {rate:g} is out: {error}",))
    best = max(found, key=lambda rate: (*found[rate], -rate))
    if found[best][0] < 0:
        rates = ", ".join(f"{rate:g}" for rate in found)
        raise VitreousError(f"--sweep: training went astray with every rate ({rates}); try lower ones with --set sweep=")
    listed = ", ".join(f"{rate:g}: {f'{top1:.2%}' if top1 >= 0 else 'astray'}" for rate, (top1, _) in found.items())
    sentence = f"lr {best:g}: the best of the sweep ({listed}, judged by {recipe.sweep_share:.0%} of the training images)"
    _say(world, (sentence,))
    return replace(asked, set=(*asked.set, f"lr={best!r}")), sentence


def _say(world: World, lines: tuple[str, ...]) -> None:
    for line in lines if world.is_main else ():
        say(line)
