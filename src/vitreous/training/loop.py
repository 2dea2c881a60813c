"""The loop: batch, loss, gradient, step. One for every objective, recipe, precision and number of processes.

Everything that goes by chance comes from (seed, step): the batch from the loader, dropout and masks from a generator that
is seeded anew for each pass. So a state is tensors and a step number, and a run that was killed goes on as if it had not been.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitreous.core.distributed import World, all_gather, all_reduce_sum
from vitreous.core.errors import VitreousError, first_few
from vitreous.core.files import write_text
from vitreous.data.bad_images import NAME as BAD_IMAGES
from vitreous.data.loading.loader import Batch, Loader
from vitreous.data.sampling import derive_key
from vitreous.data.source import Skipped, Source, Stream
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.mixup import mixup, one_hot
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.majority import majority_rate
from vitreous.evaluation.validation_result import ValidationResult
from vitreous.training.config import RunConfig
from vitreous.training.ema import PolyakAverage
from vitreous.training.objectives.classification import Classification
from vitreous.training.objectives.masked_patch import MaskedPatches
from vitreous.training.optim import freeze, optimizer, prepare_state, set_rate
from vitreous.training.parallel import accumulating, full_tensor, local_tensor, needs_warmup_backward, parallelize, resharded
from vitreous.training.progress_display import Display
from vitreous.training.run_folder import RunFolder
from vitreous.training.schedule import learning_rate
from vitreous.training.state import States, tensors_of
from vitreous.training.validation import Interrupted, never_empty, validate, validate_loss

Objective = Classification | MaskedPatches

_TAMER = "use a lower --set lr=, a longer warmup= or clip=1, with another --out"

SAVE_SECONDS = 180.0  # between states, where --save-every does not say
RECORDS = 500  # about so many lines of metrics in a run


@dataclass
class Progress:
    """What has been counted so far; part of the state."""

    step: int = 0  # steps done
    seconds: float = 0.0  # of training, over all starts
    best: float | None = None
    best_loss: float = math.inf  # of the best evaluation: among equal accuracies the lower loss is better
    best_step: int = 0
    without_better: int = 0  # evaluations since
    stopped: bool = False  # early
    owed: bool = False  # an evaluation of this step
    window: dict[str, float] = field(default_factory=dict)  # sums since the last record

    def counted(self) -> dict[str, Any]:
        """A copy, which stays as it is while training goes on."""
        return {name: copy.deepcopy(value) for name, value in vars(self).items() if name != "step"}


class Diverged(VitreousError):
    """Training went astray."""


class Flags(NamedTuple):
    """What processes tell each other after a step: at how many of them it is so."""

    interrupted: float  # by a signal
    overdue: float  # it is time to save
    written: float  # a state that was being written lies on disk


class Loop:
    """A run in this process."""

    def __init__(self, plan: RunConfig, objective: Objective, world: World, folder: RunFolder) -> None:
        self.plan, self.world, self.folder = plan, world, folder
        recipe = plan.recipe
        self.objective = objective.to(world.device).train()
        freeze(objective, recipe)
        self.module = parallelize(objective, plan.parallel, plan.shard_group, world)
        self.optimizer = optimizer(objective, recipe)
        prepare_state(self.optimizer, recipe)
        self.average = PolyakAverage(objective, recipe.average) if recipe.average else None
        self.states = States(folder.path / "state", world)
        self.progress = Progress()
        self.last: tuple[ValidationResult | None, dict[str, float]] | None = None  # the newest evaluation of this process
        channels = plan.model.channels
        self.loader = self._loader(plan.train, Preprocess(recipe.preprocess, channels), recipe.batch_size)
        # As many at once as in training, where memory was found to be enough for them.
        at_once = min(plan.micro_batch or recipe.batch_size, self.loader.own_batch) * world.world_size
        evaluation = Preprocess(recipe.evaluation, channels)
        self.judge = None if plan.held_out is None else self._loader(plan.held_out, evaluation, at_once)
        self._overdue = 0.0  # how many processes say that it is time to save
        self._settled = not needs_warmup_backward(self.module)
        self._train_counts = plan.train.counts() if isinstance(plan.train, Source) else None
        self._named: set[Skipped] = set()  # shards that were passed over, and have been told of
        self.autocast = functools.partial(
            torch.autocast, world.device.type, torch.bfloat16, enabled=plan.precision == "bfloat16"
        )

    def _loader(self, data: Source | Stream, preprocess: Preprocess, batch_size: int) -> Loader:
        plan, log = self.plan, self.folder.path / BAD_IMAGES
        return Loader(
            data, preprocess, batch_size, seed=plan.seed, workers=plan.workers, process=self.world.rank,
            processes=self.world.world_size, bad_images=plan.bad_images,
            bad_log=log if plan.bad_images == "skip" else None,
        )  # fmt: skip

    # Resuming ----------------------------------------------------------------------------------------------------------

    def resume(self) -> tuple[str, ...]:
        """Go on from the newest state, if there is one; says what was found."""
        self.states.tidy()
        found, damaged = self.states.newest()
        said = list(damaged)
        if found is not None:
            self.states.read(found, tensors_of(self.objective, self.optimizer, self.average))
            self.progress = Progress(found.step, **found.counted)
            if self.plan.extend and self.progress.stopped:
                self.progress.stopped, self.progress.without_better = False, 0
                said.append("it had stopped early; --extend lets it go on")
            self.states.drop_newer(found)
            said.append(f"going on from the state of step {found.step:,}")
        elif damaged:
            said.append("no state is left that can be used; the run begins anew")
        elif self.folder.history():
            said.append("it had begun before, and there is no state of it; the run begins anew")
        self.folder.cut(self.progress.step, judged=not self.progress.owed)
        return tuple(said)

    # Training ----------------------------------------------------------------------------------------------------------

    def run(
        self,
        display: Display,
        evaluated: Callable[[ValidationResult | None, bool], None],
        record: Callable[[dict[str, Any]], None],
    ) -> None:
        """To the last step, or to an early stop. `evaluated` hears of every evaluation, and whether it is the best so far."""
        with _signals() as signals:
            try:
                interrupted = self._run(display, evaluated, record, signals)
            except BaseException as error:
                if self.world.world_size == 1:  # with others, only what happens to all of them alike may be finished
                    with contextlib.suppress(VitreousError):
                        self.states.finish()
                if isinstance(error, BadImage):
                    remedy = "or start the same command with --bad-images skip, to do without it"
                    raise VitreousError(f"{error}; {remedy}") from error
                raise
        if interrupted:  # here or at another process; the handlers are the caller's again
            signal.raise_signal(signals[0] if signals else signal.SIGTERM)

    def _run(
        self,
        display: Display,
        evaluated: Callable[[ValidationResult | None, bool], None],
        record: Callable[[dict[str, Any]], None],
        signals: list[int],
    ) -> bool:
        """Whether it was interrupted before its end."""
        plan, progress, steps = self.plan, self.progress, self.plan.steps
        every = max(1, steps // RECORDS)
        saved_at = since = time.monotonic()
        before, interrupted = progress.seconds, False
        with contextlib.closing(self.loader.training(progress.step)) as batches:  # type: ignore[type-var]
            while True:
                changed = progress.step != self.states.saved  # a run that goes on begins with a state that is saved already
                if progress.owed and not interrupted:
                    with self.result_weights():
                        interrupted, changed = self._evaluate(evaluated, record, signals), True
                    progress.seconds = before + time.monotonic() - since
                ends = progress.stopped or progress.step == steps
                if changed and (interrupted or ends or self._due()):
                    self.save()
                    saved_at = time.monotonic()
                if interrupted or ends:
                    self.states.finish()
                    break
                began = time.monotonic()
                rate = learning_rate(plan.recipe, progress.step, steps)
                overdue = plan.save_every is None and began - saved_at > SAVE_SECONDS
                loss, flags = self._step(next(batches), rate, Flags(bool(signals), overdue, self.states.written))
                if flags.written == self.world.world_size:
                    self.states.finish()
                interrupted, self._overdue = flags.interrupted > 0, flags.overdue
                progress.step += 1
                progress.window["busy"] = progress.window.get("busy", 0.0) + time.monotonic() - began
                progress.seconds = before + time.monotonic() - since
                display.step(progress.step, loss, rate, self._speed())
                if progress.step % every == 0 or progress.step == steps:
                    record(self._record(rate))
                    self._tell_passed_over(display)
                regular = plan.eval_every and progress.step % plan.eval_every == 0
                progress.owed = self.judge is not None and bool(regular or progress.step == steps)
        if progress.stopped:
            best = f"none of the last {progress.without_better} evaluations was better than step {progress.best_step:,}'s"
            display.say(f"stopped early: {best}")
        if interrupted:
            display.say(f"state of step {progress.step:,} saved; the same command goes on from there")
        return interrupted

    def _tell_passed_over(self, display: Display) -> None:
        """Shards that could not be read, where that is allowed: each is named once. All processes call this."""
        met = [*self.loader.skipped, *(self.judge.skipped if self.judge is not None else ())]
        new = [entry for entry in met if entry not in self._named]
        self._named.update(new)
        for shard, reason, delivered in sorted({entry for part in all_gather(self.world, new) for entry in part}):
            line = f"{shard}: passed over ({reason}); {delivered:,} images of it were there"
            self.folder.log(line)
            display.say(line)

    def _due(self) -> bool:
        """Whether a state is to be saved after this step, at all processes alike."""
        if self.progress.step == 0:
            return False
        return self._overdue > 0 if self.plan.save_every is None else self.progress.step % self.plan.save_every == 0

    def save(self) -> None:
        broken = not all(torch.isfinite(local_tensor(parameter.detach())).all() for parameter in self.objective.parameters())
        if any(all_gather(self.world, broken)):
            raise Diverged(
                f"step {self.progress.step}: the weights are no longer finite, so this state is not saved; {self.good()}; "
                f"{_TAMER}"
            )
        self.states.save(self.progress.step, tensors_of(self.objective, self.optimizer, self.average), self.progress.counted())

    def _step(self, batch: Batch, rate: float, flags: Flags) -> tuple[float, Flags]:
        """One step of the optimiser: the mean loss, and at how many processes each flag is up."""
        recipe, plan, world = self.plan.recipe, self.plan, self.world
        images, targets = batch.images, one_hot(batch.labels, max(1, len(plan.classes)))
        if recipe.mixup:
            images, targets = mixup(images, targets, recipe.mixup, plan.seed, self.progress.step)
        count = float(len(batch))
        if world.world_size > 1:  # some images may have been skipped, elsewhere too
            count = float(all_reduce_sum(world, torch.tensor([count], dtype=torch.float64)))
        sums = self._backward(images, targets, count)
        everyone = all_reduce_sum(world, torch.tensor([*sums.values(), *flags], dtype=torch.float64)).tolist()
        sums = dict(zip(sums, everyone, strict=False))
        loss = sums["loss"] / max(count, 1.0)
        if count:
            if not math.isfinite(loss):
                self._not_finite(batch, f"the loss is {loss}")
            self._update(batch, rate)
        window = self.progress.window
        for name, value in {**sums, "n": count}.items():
            window[name] = window.get(name, 0.0) + value
        return loss, Flags(*everyone[len(sums) :])

    def _backward(self, images: Tensor, targets: Tensor, count: float) -> dict[str, float]:
        """The gradient of the mean loss of `count` images, of which this process has these; and their sums, the loss first."""
        mine = self.loader.own_batch
        size = min(self.plan.micro_batch or mine, mine)
        sums = dict.fromkeys(("loss", *self.objective.sums), 0.0)
        passes = range(0, mine, size)
        for number, at in enumerate(passes):
            part, wanted = images[at : at + size], targets[at : at + size]
            if not len(part) and self.world.world_size == 1:
                continue
            if not self._settled:  # once for nothing, see `settles_later`
                self._pass(part, wanted, count, number, last=True)
                self.optimizer.zero_grad(set_to_none=True)
                self._settled = True
            found = self._pass(part, wanted, count, number, last=number == len(passes) - 1)
            for name in sums if len(part) else ():
                sums[name] += float(found[name])
        return sums

    def _pass(self, images: Tensor, targets: Tensor, count: float, number: int, *, last: bool) -> dict[str, Tensor]:
        """Forward and backward, once; gradients are added to what there is."""
        world, real = self.world, float(len(images) > 0)
        images, targets = never_empty(images, targets)
        torch.manual_seed(derive_key("pass", self.plan.seed, self.progress.step, world.rank, number))
        with accumulating(self.module, last):
            with self.autocast():
                losses, extras = self.module(images.to(world.device), targets.to(world.device))
            # Gradients are averaged over processes, so that each is given its share times their number.
            (losses.sum() * (real * world.world_size / max(count, 1.0))).backward()
        return {"loss": losses.detach().sum(), **extras}

    def _update(self, batch: Batch, rate: float) -> None:
        learning = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.get_total_norm([parameter.grad for parameter in learning if parameter.grad is not None])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if not torch.isfinite(norm):
            self._not_finite(batch, f"the gradient's norm is {float(norm)}")
        if self.plan.recipe.clip is not None:
            nn.utils.clip_grads_with_norm_(learning, self.plan.recipe.clip, norm)
        set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.objective, self.progress.step)

    def _not_finite(self, batch: Batch, what: str) -> None:
        """The weights are still those of before this step, and the last state is good."""
        step = self.progress.step + 1
        ids = [item for part in all_gather(self.world, list(batch.ids)) for item in part]
        path = self.folder.path / f"not-finite-step-{step}.txt"
        if self.world.is_main:
            write_text(path, "".join(f"{item}\n" for item in ids))
        self.states.finish()
        raise Diverged(
            f"step {step}: {what}; the images of its batch: {first_few(ids, 4)} (all in {path}); {self.good()}; look at those "
            f"images, or {_TAMER}"
        )

    def good(self) -> str:
        """What is left if the run ends here."""
        return f"the state of step {self.states.saved:,} is kept" if self.states.saved is not None else "no state was saved yet"

    # Measuring ---------------------------------------------------------------------------------------------------------

    def _speed(self) -> float:
        """Images per second of training since the last record; evaluating and saving do not count."""
        return self.progress.window.get("n", 0.0) / max(1e-9, self.progress.window.get("busy", 0.0))

    def _record(self, rate: float) -> dict[str, Any]:
        window = self.progress.window
        n = max(1.0, window.get("n", 0.0))
        found = {**self._place(), "split": "train", "loss": window["loss"] / n, "lr": rate}
        found["images_per_second"] = round(self._speed(), 2)
        found |= {name: window.get(name, 0.0) / n for name in self.objective.sums}
        self.progress.window = {}
        return found

    def _place(self) -> dict[str, Any]:
        progress = self.progress
        images = progress.step * self.plan.recipe.batch_size
        epoch = round(images / self.plan.images, 4) if self.plan.images else None
        return {"step": progress.step, "epoch": epoch, "images": images, "seconds": round(progress.seconds, 3)}

    def evaluate(self, signals: Sequence[int] = ()) -> tuple[ValidationResult | None, dict[str, float]]:
        """The model as it is now, by the held-out images; `Interrupted` is raised at all processes if one gets a signal."""
        assert self.judge is not None
        try:
            if not isinstance(self.objective, Classification):
                seed = derive_key("judge", self.plan.seed) >> 1
                sums, classes = self.objective.sums, len(self.plan.classes)
                return None, validate_loss(self.module, self.judge, classes, sums, self.world, self.autocast, seed, signals)
            probabilities = self.objective.probabilities
            outcome = validate(self.module, self.judge, self.plan.classes, self.world, self.autocast, probabilities, signals)
            majority = majority_rate([own.n for own in outcome.per_class], self._train_counts, outcome.n)
            outcome = replace(outcome, majority=majority)
        finally:
            resharded(self.module)
        found = {"loss": outcome.loss, "top1": outcome.top1, "n": float(outcome.n)}
        return outcome, found if outcome.top5 is None else {**found, "top5": outcome.top5}

    def _evaluate(
        self,
        evaluated: Callable[[ValidationResult | None, bool], None],
        record: Callable[[dict[str, Any]], None],
        signals: Sequence[int],
    ) -> bool:
        """The evaluation that is owed; whether a signal came in between, and it is still owed."""
        progress, plan = self.progress, self.plan
        began = time.monotonic()
        try:
            outcome, found = self.last = self.evaluate(signals)
        except Interrupted:
            return True
        if not math.isfinite(found["loss"]):
            self.states.finish()
            raise Diverged(f"step {progress.step}: the loss of held-out images is {found['loss']}; {self.good()}; {_TAMER}")
        progress.owed = False
        score = found["top1"] if outcome is not None else -found["loss"]
        better = progress.best is None or (score, -found["loss"]) > (progress.best, -progress.best_loss)
        if better:
            progress.best, progress.best_loss = score, found["loss"]
            progress.best_step, progress.without_better = progress.step, 0
        else:
            progress.without_better += 1
            progress.stopped = plan.recipe.patience is not None and progress.without_better >= plan.recipe.patience
        assert plan.held_out is not None
        rate = learning_rate(plan.recipe, progress.step - 1, plan.steps)
        speed = round(found["n"] / max(1e-9, time.monotonic() - began), 2)
        place = {**self._place(), "split": plan.held_out.split, **found, "n": int(found["n"])}
        record({**place, "lr": rate, "images_per_second": speed})
        evaluated(outcome, better)
        return False

    def tensors(self) -> dict[str, Tensor]:
        """A copy of the model's weights, whole and in ordinary memory; every process must ask."""
        model = self.objective.model
        return {name: full_tensor(tensor.detach()).to("cpu", copy=True) for name, tensor in model.state_dict().items()}

    @contextlib.contextmanager
    def result_weights(self) -> Iterator[None]:
        """Inside, the weights are those that are evaluated and kept: the Polyak average, where the recipe has one."""
        if self.average is None:
            yield
            return
        last = {name: parameter.detach().clone() for name, parameter in self.objective.named_parameters()}
        try:
            self._put(self.average.tensors)
            yield
        finally:
            self._put(last)

    @torch.no_grad()
    def put_weights(self, tensors: dict[str, Tensor]) -> None:
        """Other weights for the model, whole ones; every process gives the same."""
        model = self.objective.model
        for name, parameter in model.named_parameters():
            new = tensors[name].to(parameter.device)
            if isinstance(parameter, DTensor):
                new = distribute_tensor(new, parameter.device_mesh, parameter.placements)
            parameter.copy_(new)

    @torch.no_grad()
    def _put(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.objective.named_parameters():
            parameter.copy_(tensors[name])


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM and SIGHUP let the step finish; the list says which came. A second one of a kind ends it at once."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before: dict[int, Any] = {}
    number: int

    def note(number: int, frame: object) -> None:
        came.append(number)
        signal.signal(number, before[number])

    for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            before[number] = signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
