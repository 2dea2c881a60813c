"""The training loop: batch, loss, gradient, step. One for every objective, recipe, precision and world size.

Everything random comes from (seed, step): the batch from the loader, dropout and masks from a generator that is seeded anew
for each forward pass. So a state is tensors and a step number, and a run that was killed is resumed to the same bytes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitreous.core.device import seed_generators
from vitreous.core.distributed import World, all_gather, all_reduce_by_name
from vitreous.core.errors import VitreousError, first_few
from vitreous.core.files import write_text
from vitreous.data.bad_images import NAME as BAD_IMAGES
from vitreous.data.loading.loader import Batch, Loader
from vitreous.data.sampling import Sampling, derive_key
from vitreous.data.source import Skipped, Source, Stream
from vitreous.data.transforms.cutmix import cutmix
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.mixup import mixup, one_hot
from vitreous.data.transforms.parse import Preprocess
from vitreous.training.callbacks import Callback
from vitreous.training.config import RunConfig
from vitreous.training.ema import PolyakAverage
from vitreous.training.lora import merged
from vitreous.training.objectives.objective import Objective
from vitreous.training.optim import freeze, optimizer, prepare_state, set_rate
from vitreous.training.parallel import accumulating, full_tensor, local_tensor, needs_warmup_backward, parallelize, resharded
from vitreous.training.run_folder import RunFolder
from vitreous.training.schedule import learning_rate
from vitreous.training.state import States, tensors_of
from vitreous.training.validation import Evaluation, HeldOut, Interrupted, never_empty

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

    def count_evaluation(self, score: float, loss: float, patience: int | None) -> bool:
        """Whether it is the best so far; without patience left, the run stops."""
        is_best = self.best is None or (score, -loss) > (self.best, -self.best_loss)
        if is_best:
            self.best, self.best_loss, self.best_step, self.without_better = score, loss, self.step, 0
        else:
            self.without_better += 1
            self.stopped = patience is not None and self.without_better >= patience
        return is_best

    def counted(self) -> dict[str, Any]:
        """A copy, which stays as it is while training continues."""
        return {name: copy.deepcopy(value) for name, value in vars(self).items() if name != "step"}


class Diverged(VitreousError):
    """A loss, a gradient or the weights are no longer finite."""


class Loop:
    """The part of a run that this rank does. `callbacks` hear of its events."""

    def __init__(self, config: RunConfig, objective: Objective, world: World, folder: RunFolder) -> None:
        self.config, self.world, self.folder = config, world, folder
        self.callbacks: list[Callback] = []
        recipe = config.recipe
        self.objective = objective.to(world.device).train()
        freeze(objective, recipe)
        self.module = parallelize(objective, config.options.parallel, config.options.shard_group, world)
        self.optimizer = optimizer(objective, recipe)
        prepare_state(self.optimizer, recipe)
        self.average = PolyakAverage(objective, recipe.average) if recipe.average else None
        self.states = States(folder.path / "state", world)
        self.progress = Progress()
        self.last: Evaluation | None = None  # the newest
        preprocess = Preprocess(recipe.preprocess, config.model.channels)
        self.loader = self._loader(config.train, preprocess, recipe.batch_size, recipe.sampling)
        self.held_out = None if config.held_out is None else self.evaluation_loader(config.held_out)
        self._save_is_due = False  # at some rank, three minutes after the last one
        self._warmed_up = not needs_warmup_backward(self.module)
        self._train_counts = config.train.counts() if isinstance(config.train, Source) else None
        self._reported: set[Skipped] = set()  # shards that were skipped
        self.autocast = functools.partial(
            torch.autocast, world.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"
        )

    def _loader(self, data: Source | Stream, preprocess: Preprocess, batch_size: int, sampling: Sampling = "uniform") -> Loader:
        config, log = self.config, self.folder.path / BAD_IMAGES
        return Loader(
            data, preprocess, batch_size, seed=config.options.seed, workers=config.options.workers, rank=self.world.rank,
            world_size=self.world.world_size, bad_images=config.options.bad_images,
            bad_log=log if config.options.bad_images == "skip" else None, sampling=sampling,
        )  # fmt: skip

    def evaluation_loader(self, data: Source | Stream) -> Loader:
        """As many at once as in training, where memory was found to be enough for them."""
        recipe, model = self.config.recipe, self.config.model
        at_once = min(self.config.micro_batch or recipe.batch_size, self.loader.local_batch) * self.world.world_size
        return self._loader(data, Preprocess(recipe.evaluation, model.channels), at_once)

    # Resuming ----------------------------------------------------------------------------------------------------------

    def resume(self) -> tuple[str, ...]:
        """Load the newest state, if there is one; returns what to say about it."""
        found, damaged = self.states.newest()
        said = list(damaged)
        if found is not None:
            self.states.read(found, tensors_of(self.objective, self.optimizer, self.average))
            self.progress = Progress(found.step, **found.counted)
            if self.config.options.extend and self.progress.stopped:
                self.progress.stopped, self.progress.without_better = False, 0
                said.append("it had stopped early; --extend resumes it")
            said.append(f"resuming from the state of step {found.step:,}")
        elif damaged:
            said.append("no state is left that can be used; the run starts again")
        elif self.folder.history():
            said.append("it had begun before, and there is no state of it; the run starts again")
        self.folder.cut(self.progress.step, evaluated=not self.progress.owed)
        return tuple(said)

    # Training ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the last step, to an early stop or to a signal."""
        with _signals() as signals:
            try:
                interrupted = self._run(signals)
            except BaseException as error:
                if self.world.world_size == 1:  # with others, only what happens to all of them alike may be finished
                    with contextlib.suppress(VitreousError):
                        self.states.finish()
                if isinstance(error, BadImage):
                    remedy = "or start the same command with --bad-images skip, to do without it"
                    raise VitreousError(f"{error}; {remedy}") from error
                raise
        if interrupted:  # here or at another rank; the handlers are the caller's again
            signal.raise_signal(signals[0] if signals else signal.SIGTERM)

    def _run(self, signals: list[int]) -> bool:
        """Whether it was interrupted before its end."""
        config, progress, steps = self.config, self.progress, self.config.steps
        saved_at, interrupted = time.monotonic(), False
        began = saved_at - progress.seconds
        with contextlib.closing(self.loader.training(progress.step)) as batches:  # type: ignore[type-var]
            while True:
                changed = progress.step != self.states.saved  # a run that is resumed begins with a state that is saved
                if progress.owed and not interrupted:
                    interrupted, changed = not self._evaluate(signals), True
                    progress.seconds = time.monotonic() - began
                ends = interrupted or progress.stopped or progress.step == steps
                if changed and (ends or self._due()):
                    self.save()
                    saved_at = time.monotonic()
                if ends:
                    self.states.finish()
                    break
                step_began, lr = time.monotonic(), learning_rate(config.recipe, progress.step, steps)
                overdue = config.options.save_every is None and step_began - saved_at > SAVE_SECONDS
                flags = {"interrupted": bool(signals), "overdue": overdue, "written": self.states.written}
                loss, ranks = self._step(next(batches), lr, flags)
                if ranks["written"] == self.world.world_size:
                    self.states.finish()
                interrupted, self._save_is_due = ranks["interrupted"] > 0, ranks["overdue"] > 0
                progress.step += 1
                progress.window["busy"] = progress.window.get("busy", 0.0) + time.monotonic() - step_began
                progress.seconds = time.monotonic() - began
                self._emit_step(loss, lr)
        if progress.stopped:
            best = f"none of the last {progress.without_better} evaluations was better than step {progress.best_step:,}'s"
            self.say(f"stopped early: {best}")
        if interrupted:
            self.say(f"state of step {progress.step:,} saved; the same command resumes from there")
        return interrupted

    def _emit_step(self, loss: float, lr: float) -> None:
        config, step = self.config, self.progress.step
        for callback in self.callbacks:
            callback.on_step(step, loss, lr, self._speed())
        if step % max(1, config.steps // RECORDS) == 0 or step == config.steps:
            self._emit_metrics(self._record(lr))
            self._report_skipped_shards()
        regular = config.eval_every and step % config.eval_every == 0
        self.progress.owed = self.held_out is not None and bool(regular or step == config.steps)

    def _emit_metrics(self, record: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_metrics(record)

    def say(self, line: str) -> None:
        for callback in self.callbacks:
            callback.on_message(line)

    def _report_skipped_shards(self) -> None:
        """Shards that could not be read, where that is allowed: each is named once. All ranks call this."""
        met = [*self.loader.skipped, *(self.held_out.skipped if self.held_out is not None else ())]
        new = [entry for entry in met if entry not in self._reported]
        self._reported.update(new)
        for shard, reason, delivered in sorted({entry for part in all_gather(self.world, new) for entry in part}):
            self.say(f"{shard}: passed over ({reason}); {delivered:,} images of it were there")

    def _due(self) -> bool:
        """Whether a state is to be saved after this step, at all ranks alike."""
        if self.progress.step == 0:
            return False
        every = self.config.options.save_every
        return self._save_is_due if every is None else self.progress.step % every == 0

    def save(self) -> None:
        broken = not all(torch.isfinite(local_tensor(parameter.detach())).all() for parameter in self.objective.parameters())
        if any(all_gather(self.world, broken)):
            raise self._diverged("the weights are no longer finite, so this state is not saved")
        self.states.save(self.progress.step, tensors_of(self.objective, self.optimizer, self.average), self.progress.counted())

    def _step(self, batch: Batch, lr: float, flags: Mapping[str, bool]) -> tuple[float, dict[str, float]]:
        """One step of the optimiser: the mean loss, and at how many ranks each flag is up."""
        config, world = self.config, self.world
        images, targets = self._mix(batch.images, one_hot(batch.labels, max(1, len(config.classes))))
        # Some images may have been skipped, at other ranks too.
        count = all_reduce_by_name(world, {"n": len(batch)})["n"]
        sums = self._backward(images, targets, count)
        everyone = all_reduce_by_name(world, {**sums, **flags})
        loss = everyone["loss"] / max(count, 1.0)
        if count:
            if not math.isfinite(loss):
                self._not_finite(batch, f"the loss is {loss}")
            self._update(batch, lr)
        window = self.progress.window
        for name, value in {**{name: everyone[name] for name in sums}, "n": count}.items():
            window[name] = window.get(name, 0.0) + value
        return loss, everyone

    def _mix(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """By mixup or CutMix; where the recipe has both, by one of them."""
        recipe, seed, step = self.config.recipe, self.config.options.seed, self.progress.step
        if recipe.cutmix and (not recipe.mixup or derive_key("cutmix or mixup", seed, step) % 2):
            return cutmix(images, targets, recipe.cutmix, seed, step)
        return mixup(images, targets, recipe.mixup, seed, step) if recipe.mixup else (images, targets)

    def try_step(self, batch: Batch) -> None:
        """The work of a step, to be timed: at a rate of 0, and nothing is counted."""
        self._step(batch, 0.0, {})
        self.progress.window = {}

    def try_evaluation(self, batch: Batch) -> None:
        """The work of evaluating a batch, to be timed."""
        self.objective.eval()
        with torch.no_grad(), self.autocast():
            targets = one_hot(batch.labels, max(1, len(self.config.classes)))
            self.module(*(each.to(self.world.device) for each in never_empty(batch.images, targets)))
        self.objective.train()

    def _backward(self, images: Tensor, targets: Tensor, count: float) -> dict[str, float]:
        """The gradient of the mean loss of `count` images, of which this process has these; and their sums, the loss first."""
        mine = self.loader.local_batch
        size = min(self.config.micro_batch or mine, mine)
        sums = dict.fromkeys(("loss", *self.objective.sums), 0.0)
        passes = range(0, mine, size)
        for number, at in enumerate(passes):
            part, part_targets = images[at : at + size], targets[at : at + size]
            if not len(part) and self.world.world_size == 1:
                continue
            if not self._warmed_up:  # one warm-up backward pass fixes DDP's bucket order
                self._pass(part, part_targets, count, number, last=True)
                self.optimizer.zero_grad(set_to_none=True)
                self._warmed_up = True
            found = self._pass(part, part_targets, count, number, last=number == len(passes) - 1)
            for name in sums if len(part) else ():
                sums[name] += float(found[name])
        return sums

    def _pass(self, images: Tensor, targets: Tensor, count: float, number: int, *, last: bool) -> dict[str, Tensor]:
        """Forward and backward, once; gradients are added to what there is."""
        world, real = self.world, float(len(images) > 0)
        images, targets = never_empty(images, targets)
        seed_generators(derive_key("pass", self.config.options.seed, self.progress.step, world.rank, number), world.device)
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
        if self.config.recipe.clip is not None:
            nn.utils.clip_grads_with_norm_(learning, self.config.recipe.clip, norm)
        set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.objective, self.progress.step)

    def _not_finite(self, batch: Batch, what: str) -> None:
        """The weights are still those of before this step, and the last state is good."""
        ids = [item for part in all_gather(self.world, list(batch.ids)) for item in part]
        path = self.folder.path / f"not-finite-step-{self.progress.step + 1}.txt"
        if self.world.is_main:
            write_text(path, "".join(f"{item}\n" for item in ids))
        self.states.finish()
        raise self._diverged(f"{what}; look at the images of its batch: {first_few(ids, 4)} (all in {path})", 1)

    def _diverged(self, what: str, steps: int = 0) -> Diverged:
        """The error for it, in the step after so many more."""
        remedy = "use a lower --set lr=, a longer warmup= or clip=1, with another --out"
        return Diverged(f"step {self.progress.step + steps}: {what}; {self.states.describe_saved()}; {remedy}")

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
        images = progress.step * self.config.recipe.batch_size
        epoch = round(images / self.config.images, 4) if self.config.images else None
        return {
            "step": progress.step,
            "epoch": epoch,
            "images": images,
            "seconds": round(progress.seconds, 3),
            "flops": self.config.flops(progress.step),
        }

    def evaluate(self, signals: Sequence[int] = (), data: Source | Stream | None = None) -> Evaluation:
        """The model as it is now, on the held-out images or `data`; `Interrupted` at all ranks if one gets a signal."""
        loader = self.held_out if data is None else self.evaluation_loader(data)
        assert loader is not None
        seed = derive_key("judge", self.config.options.seed) >> 1
        held_out = HeldOut(
            self.module, loader, self.config.classes, self._train_counts, self.world, self.autocast, seed, signals
        )
        try:
            return self.objective.validate(held_out)
        finally:
            resharded(self.module)

    def _evaluate(self, signals: Sequence[int]) -> bool:
        """The evaluation that is owed; False if a signal came in between, and it is still owed."""
        progress, config, began = self.progress, self.config, time.monotonic()
        assert config.held_out is not None
        with self.result_weights():
            try:
                self.last = evaluation = self.evaluate(signals)
            except Interrupted:
                return False
            loss, score, n = evaluation.metrics["loss"], evaluation.score, int(evaluation.metrics["n"])
            if not math.isfinite(loss):
                self.states.finish()
                raise self._diverged(f"the loss of held-out images is {loss}")
            progress.owed = False
            is_best = progress.count_evaluation(score, loss, config.recipe.patience)
            self.emit_evaluation(config.held_out.split, {**evaluation.metrics, "n": n}, n / max(1e-9, time.monotonic() - began))
            self.say(f"step {progress.step:,}: {config.held_out.split} {evaluation.describe()}")
            for callback in self.callbacks:
                callback.on_evaluated(evaluation, is_best)
        return True

    def emit_evaluation(self, split: str, measured: Mapping[str, Any], images_per_second: float) -> None:
        """A line of metrics.jsonl after this step."""
        lr = learning_rate(self.config.recipe, self.progress.step - 1, self.config.steps)
        speed = {"lr": lr, "images_per_second": round(images_per_second, 2)}
        self._emit_metrics({**self._place(), "split": split, **measured, **speed})

    def tensors(self) -> dict[str, Tensor]:
        """A copy of the model's weights, whole and in ordinary memory; every process must ask."""
        model = self.objective.model
        return {name: full_tensor(tensor.detach()).to("cpu", copy=True) for name, tensor in model.state_dict().items()}

    @contextlib.contextmanager
    def result_weights(self, *, averaged: bool = True) -> Iterator[None]:
        """Inside, the weights are those that are evaluated and kept: merged, where there are LoRA's factors beside them, and
        the Polyak average, where the recipe has one and unless the last weights are asked for."""
        if self.average is None or not averaged:
            with merged(self.objective):
                yield
            return
        last = {name: parameter.detach().clone() for name, parameter in self.objective.named_parameters()}
        try:
            put_weights(self.objective, self.average.tensors)
            with merged(self.objective):
                yield
        finally:
            put_weights(self.objective, last)


@torch.no_grad()
def put_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Other weights for a module, full tensors or sharded as its own are; every rank gives the same."""
    for name, parameter in module.named_parameters():
        new = tensors[name].to(parameter.device)
        if isinstance(parameter, DTensor) and not isinstance(new, DTensor):
            new = distribute_tensor(new, parameter.device_mesh, parameter.placements)
        parameter.copy_(new)


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
