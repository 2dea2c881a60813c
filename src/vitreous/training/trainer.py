"""From a plan to a finished run: the model is made, the loop runs, and what it found is written down."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recomputed

from vitreous.classifier import Classifier
from vitreous.core.device import keep_memory, using_threads
from vitreous.core.distributed import World, broadcast
from vitreous.core.errors import VitreousError
from vitreous.core.progress import is_silent, say, silence
from vitreous.data.bad_images import NAME as BAD_IMAGES
from vitreous.data.bad_images import write_bad_images
from vitreous.data.sampling import derive_key
from vitreous.data.source import Source
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.baseline import closed_form_baseline
from vitreous.evaluation.majority import describe_majority
from vitreous.evaluation.validation_result import ValidationResult
from vitreous.models.build import Model, allocate_parameters, build_on_meta, build_with_tensors
from vitreous.models.vit import ViT
from vitreous.training.config import RunConfig, config_json
from vitreous.training.loop import Loop, Objective
from vitreous.training.mistakes import write_mistakes
from vitreous.training.objectives.classification import Classification, balanced_weights
from vitreous.training.objectives.masked_patch import MaskedPatches
from vitreous.training.objectives.patch_targets import scales_of
from vitreous.training.progress_display import Display
from vitreous.training.run_folder import CONFIG, RunFolder, read_config
from vitreous.training.run_report import write_report
from vitreous.training.trackers import Trackers
from vitreous.weights.checkpoint import Checkpoint, read_checkpoint, write_checkpoint


@dataclass(frozen=True)
class Finished:
    """What a run came to."""

    result: Mapping[str, Any]
    already: bool  # it had been finished before
    notes: tuple[str, ...] = ()


def train(plan: RunConfig, world: World) -> Finished:
    folder = RunFolder(plan.out, world)
    try:
        with using_threads(plan.threads):
            return _train(plan, world, folder)
    finally:
        folder.release()


def _train(plan: RunConfig, world: World, folder: RunFolder) -> Finished:
    settings = config_json(plan, world.world_size)
    objective = objective_of(plan)  # before the folder is claimed: what is refused leaves nothing
    if folder.claim(settings, plan.extend):
        return Finished(folder.result(), True, (f"{plan.out}: this run is finished; nothing was changed",))
    keep_memory()
    loop = Loop(plan, objective, world, folder)
    said = (*loop.resume(), *_otherwise(plan, read_config(plan.out / CONFIG), settings))
    if loop.progress.step == 0 and world.is_main:
        if plan.bad:
            write_bad_images(plan.out / BAD_IMAGES, plan.bad)
        _compare(plan, folder)

    def notice(line: str) -> None:
        folder.log(line)
        say(line)

    trackers = Trackers(plan.track if world.is_main else (), plan.out, settings, loop.progress.step, notice)
    title = f"{plan.command} {plan.model.name}"
    with (
        contextlib.closing(trackers),
        silence(is_silent() or not world.is_main),
        Display(title, plan.steps, loop.progress.step, plan.recipe.batch_size, world.device) as display,
    ):

        def tell(line: str) -> None:
            folder.log(line)
            display.say(line)

        def record(found: dict[str, Any]) -> None:
            folder.record(found)
            trackers.log(found)
            if found["split"] != "train":
                outcome = loop.last[0] if loop.last else None
                alone = "" if outcome is None or outcome.majority is None else f" ({describe_majority(outcome.majority)})"
                accuracy = f", top-1 {found['top1']:.2%}{alone}" if "top1" in found else ""
                tell(f"step {found['step']:,}: {found['split']} loss {found['loss']:.4f}{accuracy} of {found['n']:,} images")

        def evaluated(outcome: ValidationResult | None, better: bool) -> None:
            tensors = loop.tensors() if better else {}
            if world.is_main:
                with _intact(loop):
                    if outcome is not None:
                        write_mistakes(plan.out, outcome, loop.progress.step)  # those who watch the run see them now
                    if better:
                        write_checkpoint(_checkpoint(plan, tensors, _measured(outcome, loop)), plan.out / "checkpoint" / "best")
                    if loop.progress.step < plan.steps:  # whoever watches the run, or has to do with what there is of it
                        unfinished = f"unfinished: this is step {loop.progress.step:,} of {plan.steps:,}"
                        _report(plan, folder, outcome, (unfinished, *plan.decisions))

        for line in plan.decisions:
            folder.log(line)
        for line in said:
            tell(line)
        try:
            loop.run(display, evaluated, record)
        except BaseException as error:
            with contextlib.suppress(VitreousError):  # a full disk: the error itself matters more
                folder.log(f"ended at step {loop.progress.step:,}: {type(error).__name__} {error}")
            raise
        if loop.progress.step < plan.steps and not loop.progress.stopped:
            raise KeyboardInterrupt  # asked to end, by a signal that somebody ignores
        result = _conclude(plan, loop, folder, world)
    return Finished(result, False)


@contextlib.contextmanager
def _intact(loop: Loop) -> Iterator[None]:
    """What cannot be written, for want of space or otherwise, costs nothing but the time since the last state."""
    try:
        yield
    except VitreousError as error:
        raise VitreousError(f"{error}; {loop.good()}: mend that and start the same command again") from error


def _otherwise(plan: RunConfig, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is allowed to differ between starts and yet changes the bytes: said, with how far the result will be from equal."""
    said = []
    for name in ("processes", "threads", "versions"):
        if before.get(name, now[name]) != now[name]:
            drawn = _drawn_by_each_process(plan) if name == "processes" else []
            equal = f"{', '.join(drawn)} will be drawn otherwise" if drawn else "equal up to rounding, not to the bit"
            said.append(f"{name}: {before[name]} at first, {now[name]} now; {equal}")
    return said


def _drawn_by_each_process(plan: RunConfig) -> list[str]:
    """What a process draws for its own part of a batch, so that it depends on how many there are."""
    rates = {name: getattr(plan.model, name, 0.0) for name in ("dropout", "attention_dropout", "stochastic_depth")}
    rates |= {"mixup": plan.recipe.mixup, "masks": float(plan.recipe.objective == "masked-patch")}
    return [name.replace("_", " ") for name, rate in rates.items() if rate]


def _compare(plan: RunConfig, folder: RunFolder) -> None:
    """What the frozen features are worth as they are: whoever waits for the run can tell whether it was worth it."""
    if plan.begun is None or plan.held_out is None or plan.recipe.objective != "classification":
        return
    clf, preprocess = Classifier(plan.begun, copy=False), Preprocess(plan.recipe.evaluation, plan.model.channels)
    found = closed_form_baseline(
        clf,
        plan.train,
        plan.held_out,
        preprocess,
        workers=plan.workers,
        device=plan.device,
        seed=plan.data_seed,
        bad_images="skip",
    )
    folder.log(found.sentence())
    say(found.sentence())


# The objective ---------------------------------------------------------------------------------------------------------


def objective_of(plan: RunConfig) -> Objective:
    """The model with its loss, drawn by the seed alone: every process makes the same."""
    torch.manual_seed(derive_key("initialise", plan.seed))
    model: Model
    if plan.start is None:
        model = allocate_parameters(build_on_meta(plan.model))
        model.initialise()
    else:
        model = build_with_tensors(plan.model, {name: tensor.clone() for name, tensor in plan.start.items()})
    if isinstance(model, ViT):
        model.lean = True  # the last layer only for the tokens that are read
    if plan.activation_checkpointing:
        _recompute(model)
    if plan.engine == "compile":
        if torch.device(plan.device).type == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
            raise VitreousError("--engine compile needs a C++ compiler, and none was found; install g++, or use --engine eager")
        for block in model.blocks if isinstance(model, ViT) else [model]:
            block.compile()
    recipe = plan.recipe
    if recipe.objective == "masked-patch":
        assert isinstance(model, ViT)
        scales, judging = (scales_of(Preprocess(text, plan.model.channels)) for text in (recipe.preprocess, recipe.evaluation))
        if scales != judging:
            raise VitreousError(f"preprocess={recipe.preprocess} and evaluation={recipe.evaluation} end in different values")
        return MaskedPatches(model, recipe.mask_share, recipe.mask_target, scales)
    weights = None
    if recipe.class_weights == "balanced":
        if not isinstance(plan.train, Source):
            raise VitreousError("class_weights=balanced needs to count the images of each class, which shards do not tell")
        weights = balanced_weights(plan.train.counts().tolist())
    return Classification(model, recipe.loss, recipe.smoothing, weights)


def _recompute(model: Model) -> None:
    """Keep only what enters each block, and compute the rest again in the backward pass: less memory, a third more work."""
    if not isinstance(model, ViT):
        raise VitreousError(f"--activation-checkpointing is for models with blocks; {model.config.name} has none")
    for block in model.blocks:
        block.forward = functools.partial(recomputed, block.forward, use_reentrant=False)


# The result ------------------------------------------------------------------------------------------------------------


def _conclude(plan: RunConfig, loop: Loop, folder: RunFolder, world: World) -> dict[str, Any]:
    """Write checkpoint, average and report. Killed in here, a run does this part again when it is started again."""
    target, notes = plan.out / "checkpoint", list(plan.decisions)
    result: dict[str, Any] = {"steps": loop.progress.step, "seconds": round(loop.progress.seconds, 1)}
    result |= {"seed": plan.seed, "data_seed": plan.data_seed, "preprocess": plan.recipe.evaluation}
    if loop.average is not None:
        raw = loop.tensors()
        its_outcome, its = _judged(loop)
        result["raw"] = _whole_n(its)
        if world.is_main:
            write_checkpoint(_checkpoint(plan, raw, _measured(its_outcome, loop)), target / "raw")
    if loop.progress.best is not None:
        score = loop.progress.best
        by = {"top1": score} if isinstance(loop.objective, Classification) else {"loss": -score}
        result["best"] = {"step": loop.progress.best_step, **by}
    with loop.result_weights():
        if plan.recipe.patience is not None and loop.progress.best is not None:
            loop.put_weights(broadcast(world, read_checkpoint(target / "best").tensors if world.is_main else None))
            loop.last = None
            notes.append(f"the result is the best evaluation's, of step {loop.progress.best_step:,}, because patience is set")
        outcome, measured = loop.last or _judged(loop)
        tensors = loop.tensors()
    result |= _whole_n(measured)
    if outcome is not None:
        result["majority"] = outcome.majority
    if world.is_main:
        step = loop.progress.best_step if plan.recipe.patience is not None else loop.progress.step
        write_checkpoint(_checkpoint(plan, tensors, {**_measured(outcome, loop), "step": step}), target)
        if outcome is not None:
            write_mistakes(plan.out, outcome, step)
        _report(plan, folder, outcome, notes)
        folder.log(f"finished: {result}")
    folder.finish(result)
    return result


def _report(plan: RunConfig, folder: RunFolder, outcome: ValidationResult | None, notes: Sequence[str]) -> None:
    begun = f"from {plan.parent['source']}" if plan.parent else "from scratch"
    write_report(
        plan.out,
        title=f"{plan.model.name}, {begun}, on {plan.data['name']}",
        config=read_config(plan.out / CONFIG),
        history=folder.history(),
        outcome=outcome,
        notes=notes,
    )


def _whole_n(measured: Mapping[str, float]) -> dict[str, Any]:
    return {name: int(value) if name == "n" else value for name, value in measured.items()}


def _judged(loop: Loop) -> tuple[ValidationResult | None, dict[str, float]]:
    return loop.evaluate() if loop.judge is not None else (None, {})


def _measured(outcome: ValidationResult | None, loop: Loop) -> dict[str, Any]:
    found: dict[str, Any] = {"step": loop.progress.step}
    if outcome is not None:
        found |= {"split": outcome.split, "n": outcome.n, "top1": outcome.top1, "top5": outcome.top5, "loss": outcome.loss}
    return found


def _checkpoint(plan: RunConfig, tensors: Mapping[str, Tensor], measured: Mapping[str, Any]) -> Checkpoint:
    classes = plan.classes if plan.recipe.objective == "classification" else None
    return Checkpoint(
        config=plan.model,
        tensors=tensors,
        preprocess=plan.recipe.evaluation,
        classes=classes,
        outputs=plan.recipe.loss,
        parent=dict(plan.parent),
        licence=plan.licence,
        metrics={**measured, "data": plan.data["name"], "seed": plan.seed, "data_seed": plan.data_seed},
    )
