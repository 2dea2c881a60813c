"""One run as its user sees it: the decisions are printed, learning rates are swept if asked, then it trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path
from vitreous.core.progress import say
from vitreous.training.batch_fitting import fit_micro_batch
from vitreous.training.config import Previous, config_json
from vitreous.training.loop import Diverged
from vitreous.training.objectives.build import OBJECTIVES
from vitreous.training.options import TrainOptions
from vitreous.training.recipes.recipe import parse_set
from vitreous.training.resolve import resolve
from vitreous.training.run_folder import RunFolder, recorded_config
from vitreous.training.trainer import Finished, train

AROUND = (0.3, 1.0, 3.0)  # times the recipe's own rate


def run_training(options: TrainOptions, previous: Previous, world: World) -> Finished:
    """Train, or resume training."""
    said: tuple[str, ...] = ()
    if options.sweep:
        options, sentence = _swept(options, previous, world)
        said = (sentence,)
    config = fit_micro_batch(resolve(options, previous, world), options, previous, world)
    config = replace(config, decisions=(*config.decisions, *said))
    if previous.resumed is None:
        _say(world, config.decisions)
    return train(config, world)


def _swept(options: TrainOptions, previous: Previous, world: World) -> tuple[TrainOptions, str]:
    """The paper's way to a learning rate: each is tried on the training images but a share, and validated on that share.

    Each trial is a run of its own in OUT/sweep, so that a sweep that was interrupted is resumed too.
    """
    changes = parse_set(options.set)
    if "lr" in changes:
        raise VitreousError(f"--sweep chooses the learning rate, and --set lr={changes['lr']} gives it; leave one of them out")
    options = replace(options, sweep=False)
    whole = resolve(options, previous, world)
    chosen, recipe = whole.options, whole.recipe
    options = replace(options, model=chosen.model, image_size=chosen.image_size)  # --model auto and the budget have decided
    if not OBJECTIVES[recipe.objective].classifies:
        raise VitreousError(f"--sweep chooses by accuracy, and recipe {recipe.name} learns no classes; use --set lr=")
    # Most recipes of pre-training name no rates: then those around its own.
    rates = recipe.sweep or tuple(float(f"{recipe.lr * factor:.3g}") for factor in AROUND)
    undecided = ("recipe.lr", "micro_batch")
    RunFolder(whole.out, world).check(config_json(whole, world.world_size), options.extend, undecided)
    found: dict[float, tuple[float, float]] = {}  # accuracy and, among equals, the lower loss
    for rate in rates:
        trial = replace(
            options,
            out=str(Path(options.out) / "sweep" / f"lr-{rate:g}"),
            sweep_share=recipe.sweep_share,
            test=None,
            keep_every=None,
            fewshot=None,
            shots=None,
            set=(*options.set, f"lr={rate!r}"),
        )
        _say(world, (f"sweep: lr {rate:g}, validated on {recipe.sweep_share:.0%} of the training images",))
        before = previous._replace(resumed=recorded_config(user_path(trial.out)))
        config = fit_micro_batch(resolve(trial, before, world, fitted=recipe), trial, before, world)
        if config.held_out is None:
            raise VitreousError("--sweep: there are too few images to hold any out; choose a learning rate with --set lr=")
        try:
            result = train(config if not found else replace(config, begun=None), world).result
            found[rate] = float(result["top1"]), -float(result["loss"])
        except Diverged as error:
            found[rate] = -1.0, 0.0
            _say(world, (f"sweep: lr {rate:g} is out: {error}",))
    best = max(found, key=lambda rate: (*found[rate], -rate))
    if found[best][0] < 0:
        tried = ", ".join(f"{rate:g}" for rate in rates)
        raise VitreousError(f"--sweep: training diverged with every rate ({tried}); try lower ones with --set sweep=")
    listed = ", ".join(f"{rate:g}: {f'{top1:.2%}' if top1 >= 0 else 'diverged'}" for rate, (top1, _) in found.items())
    sentence = f"lr {best:g}: the best of the sweep ({listed}, validated on {recipe.sweep_share:.0%} of the training images)"
    _say(world, (sentence,))
    return replace(options, set=(*options.set, f"lr={best!r}")), sentence


def _say(world: World, lines: tuple[str, ...]) -> None:
    for line in lines if world.is_main else ():
        say(line)
