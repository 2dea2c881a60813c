"""From a `RunConfig` to a finished run: the model is built, the loop runs, checkpoint and report are written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.core.device import keep_memory, using_threads
from vitreous.core.distributed import World, broadcast
from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_folder
from vitreous.core.progress import is_silent, say, silence
from vitreous.data.bad_images import NAME as BAD_IMAGES
from vitreous.data.bad_images import write_bad_images
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.baseline import closed_form_baseline
from vitreous.evaluation.validation_result import ValidationResult
from vitreous.training.callbacks import Callback
from vitreous.training.closed_form_start import (
    describe_best,
    keeps_best,
    put_images_back,
    start_from_closed_form,
    starts_from_closed_form,
)
from vitreous.training.config import RunConfig, config_json
from vitreous.training.fewshot_along import FewshotAlong
from vitreous.training.loop import Loop, put_weights
from vitreous.training.mistakes import write_mistakes
from vitreous.training.objectives.build import OBJECTIVES, build_objective
from vitreous.training.outcomes import write_outcomes
from vitreous.training.progress_display import Display
from vitreous.training.run_folder import CONFIG, RunFolder, read_config
from vitreous.training.run_report import write_report
from vitreous.training.trackers import Trackers, parse_trackers
from vitreous.training.validation import Evaluation
from vitreous.weights.checkpoint import Checkpoint, read_checkpoint, write_checkpoint


@dataclass(frozen=True)
class Finished:
    """The result of a run."""

    result: Mapping[str, Any]
    already: bool  # it had been finished before
    notes: tuple[str, ...] = ()


def train(config: RunConfig, world: World) -> Finished:
    folder = RunFolder(config.out, world)
    try:
        with using_threads(config.threads):
            return _train(config, world, folder)
    finally:
        folder.release()


def _train(config: RunConfig, world: World, folder: RunFolder) -> Finished:
    settings = config_json(config, world.world_size)
    objective = build_objective(config)  # before the folder is claimed: what is refused leaves nothing
    if folder.claim(settings, config.options.extend):
        return Finished(folder.result(), True, (f"{config.out}: this run is finished; nothing was changed",))
    keep_memory()
    loop = Loop(config, objective, world, folder)
    messages = (*loop.resume(), *_differences(config, read_config(config.out / CONFIG).settings, settings))
    if loop.progress.step == 0 and world.is_main:
        if config.bad:
            write_bad_images(config.out / BAD_IMAGES, config.bad)
        if not starts_from_closed_form(config):  # whose first evaluation is that
            _evaluate_baseline(config, folder)
    if starts_from_closed_form(config):
        messages = (*messages, start_from_closed_form(config, loop))

    def warn(line: str) -> None:
        folder.on_message(line)
        say(line)

    trackers = Trackers(
        parse_trackers(config.options.track) if world.is_main else (), config.out, settings, loop.progress.step, warn
    )
    title = f"{config.options.command} {config.model.name}"
    with (
        contextlib.closing(trackers),
        silence(is_silent() or not world.is_main),
        Display(title, config.steps, loop.progress.step, config.recipe.batch_size, world.device) as display,
    ):
        loop.callbacks = [folder, display, trackers, CheckpointWriter(loop)]
        if config.fewshot is not None:
            loop.callbacks.append(FewshotAlong(loop, config.fewshot))
        for line in config.decisions:
            folder.on_message(line)
        for line in messages:
            loop.say(line)
        try:
            loop.run()
        except BaseException as error:
            with contextlib.suppress(VitreousError):  # a full disk: the error itself matters more
                folder.on_message(f"ended at step {loop.progress.step:,}: {type(error).__name__} {error}")
            raise
        if loop.progress.step < config.steps and not loop.progress.stopped:
            raise KeyboardInterrupt  # asked to end, by a signal that somebody ignores
        return Finished(_conclude(config, loop, folder, world), False)


@dataclass(frozen=True)
class CheckpointWriter(Callback):
    """After each evaluation: checkpoint/best if it is the best, its mistakes, and the report of a run that is under way.

    And checkpoint/step-N every `keep_every` steps: before the state of that step, so that no kill loses one.
    """

    loop: Loop

    def on_step(self, step: int, loss: float, lr: float, images_per_second: float) -> None:
        loop, config = self.loop, self.loop.config
        if config.options.keep_every is None or step % config.options.keep_every:
            return
        with loop.result_weights():
            tensors = loop.tensors()  # all ranks together
        if loop.world.is_main:
            with _intact(loop), atomic_folder(config.out / "checkpoint" / f"step-{step:06d}") as part:
                write_checkpoint(_checkpoint(config, tensors, {"step": step}), part)

    def on_evaluated(self, evaluation: Evaluation, is_best: bool) -> None:
        loop, config, result, step = self.loop, self.loop.config, evaluation.result, self.loop.progress.step
        tensors = loop.tensors() if is_best else {}  # all ranks together
        if not loop.world.is_main:
            return
        with _intact(loop):
            if result is not None:
                write_mistakes(config.out, result, step)
            if is_best:
                write_checkpoint(_checkpoint(config, tensors, _metrics(result, loop)), config.out / "checkpoint" / "best")
            if step < config.steps:
                unfinished = f"unfinished: this is step {step:,} of {config.steps:,}"
                _report(config, loop.folder, result, (unfinished, *config.decisions))


@contextlib.contextmanager
def _intact(loop: Loop) -> Iterator[None]:
    """What cannot be written, for want of space or otherwise, costs nothing but the time since the last state."""
    try:
        yield
    except VitreousError as error:
        raise VitreousError(f"{error}; {loop.states.describe_saved()}: mend that and start the same command again") from error


def _differences(config: RunConfig, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is allowed to differ between starts and yet changes the bytes: said, with how far the result will be from equal."""
    said = []
    for name in ("world_size", "threads", "versions"):
        if before.get(name, now[name]) != now[name]:
            drawn = _drawn_by_each_rank(config) if name == "world_size" else []
            equal = f"{', '.join(drawn)} will be drawn otherwise" if drawn else "equal up to rounding, not to the bit"
            said.append(f"{name}: {before[name]} at first, {now[name]} now; {equal}")
    return said


def _drawn_by_each_rank(config: RunConfig) -> list[str]:
    """What a process draws for its own part of a batch, so that it depends on how many there are."""
    rates = {name: getattr(config.model, name, 0.0) for name in ("dropout", "attention_dropout", "stochastic_depth")}
    rates |= {"mixup": config.recipe.mixup, "CutMix": config.recipe.cutmix}
    rates |= {"masks": float(OBJECTIVES[config.recipe.objective].masks_patches)}
    return [name.replace("_", " ") for name, rate in rates.items() if rate]


def _evaluate_baseline(config: RunConfig, folder: RunFolder) -> None:
    """What the frozen features are worth as they are: whoever waits for the run can tell whether it was worth it."""
    if config.begun is None or config.held_out is None or not OBJECTIVES[config.recipe.objective].classifies:
        return
    clf, preprocess = Classifier(config.begun, copy=False), Preprocess(config.recipe.evaluation, config.model.channels)
    found = closed_form_baseline(
        clf,
        config.train,
        config.held_out,
        preprocess,
        workers=config.options.workers,
        device=config.device,
        seed=config.options.data_seed,
        bad_images="skip",
    )
    folder.on_message(found.sentence())
    say(found.sentence())


# The result ------------------------------------------------------------------------------------------------------------


def _conclude(config: RunConfig, loop: Loop, folder: RunFolder, world: World) -> dict[str, Any]:
    """Write checkpoint, Polyak average and report. A run that is killed in here does this part again when it is resumed."""
    target, notes, progress = config.out / "checkpoint", list(config.decisions), loop.progress
    chooses_best = keeps_best(config) and progress.best is not None
    put_images_back(config, loop)
    summary: dict[str, Any] = {"steps": progress.step, "seconds": round(progress.seconds, 1)}
    summary["flops"] = config.flops(progress.step)
    summary |= {"seed": config.options.seed, "data_seed": config.options.data_seed, "preprocess": config.recipe.evaluation}
    if loop.average is not None:
        with loop.result_weights(averaged=False):
            raw = loop.tensors()
            metrics, result = _evaluate(loop)
        summary["raw"] = metrics
        if world.is_main:
            write_checkpoint(_checkpoint(config, raw, _metrics(result, loop)), target / "raw")
    if progress.best is not None:
        summary["best"] = {"step": progress.best_step, **loop.objective.score_as_metric(progress.best)}
    with loop.result_weights():
        if chooses_best:
            best = broadcast(world, read_checkpoint(target / "best").tensors if world.is_main else None)
            put_weights(loop.objective.model, best)
            loop.last = None
            notes.append(describe_best(config, progress.best_step))
            loop.say(notes[-1])
        metrics, result = _evaluate(loop, loop.last)
        tested = None if config.test is None else loop.evaluate(data=config.test)
        tensors = loop.tensors()
    summary |= metrics
    if config.test is not None and tested is not None:
        summary["test"] = {"split": config.test.split, **tested.metrics, "n": int(tested.metrics["n"])}
        notes.append(f"on {config.test.split}, which chose nothing: {tested.describe()}")
    if result is not None:
        summary["majority"] = result.majority
    if world.is_main:
        step = progress.best_step if chooses_best else progress.step
        write_checkpoint(_checkpoint(config, tensors, {**_metrics(result, loop), "step": step}), target)
        if result is not None:
            write_mistakes(config.out, result, step)
        if (evaluated := tested.result if tested is not None else result) is not None:
            write_outcomes(config.out, evaluated)
        _report(config, folder, result, notes)
        folder.on_message(f"finished: {summary}")
    folder.finish(summary)
    return summary


def _evaluate(loop: Loop, known: Evaluation | None = None) -> tuple[dict[str, Any], ValidationResult | None]:
    """The metrics of the held-out images, where there are any, and the classifier's result."""
    if known is None and loop.held_out is None:
        return {}, None
    found = known or loop.evaluate()
    return {**found.metrics, "n": int(found.metrics["n"])}, found.result


def _report(config: RunConfig, folder: RunFolder, outcome: ValidationResult | None, notes: Sequence[str]) -> None:
    begun = f"from {config.parent['source']}" if config.parent else "from scratch"
    write_report(
        config.out,
        title=f"{config.model.name}, {begun}, on {config.data['name']}",
        config=read_config(config.out / CONFIG).settings,
        history=folder.history(),
        outcome=outcome,
        notes=notes,
    )


def _metrics(outcome: ValidationResult | None, loop: Loop) -> dict[str, Any]:
    found: dict[str, Any] = {"step": loop.progress.step}
    if outcome is not None:
        found |= {"split": outcome.split, "n": outcome.n, "top1": outcome.top1, "top5": outcome.top5, "loss": outcome.loss}
    return found


def _checkpoint(config: RunConfig, tensors: Mapping[str, Tensor], measured: Mapping[str, Any]) -> Checkpoint:
    classes = config.classes if OBJECTIVES[config.recipe.objective].classifies else None
    return Checkpoint(
        config=config.model,
        tensors=tensors,
        preprocess=config.recipe.evaluation,
        classes=classes,
        outputs=config.recipe.loss,
        parent=dict(config.parent),
        licence=config.licence,
        metrics={**measured, "data": config.data["name"], "seed": config.options.seed, "data_seed": config.options.data_seed},
    )
