"""One task, once: fine-tuned as the paper does it, or answered in closed form on frozen features."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from vitreous.classifier import Classifier
from vitreous.core.device import PrecisionName as Precision
from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.data.source import Source, Stream
from vitreous.data.transforms.ops import Flip, Scale
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.majority import count_labels, majority_rate
from vitreous.evaluation.ridge import Ridge
from vitreous.inference.features import compute_features
from vitreous.studies.suite import Protocol, Task
from vitreous.studies.suite_data import Parts
from vitreous.training.batch_fitting import fit_micro_batch
from vitreous.training.config import Previous
from vitreous.training.options import TrainOptions
from vitreous.training.recipes import tables
from vitreous.training.resolve import resolve
from vitreous.training.run_folder import recorded_config
from vitreous.training.trainer import train

RECIPE = "finetune-vtab"
_BLOCK = 8_192  # test images whose features are held at once


@dataclass(frozen=True)
class Score:
    """What one task came to, once."""

    accuracy: float
    n_train: int | None
    n_test: int
    seconds: float
    l2: float | None = None
    majority: float | None = None  # accuracy of always predicting the largest class of the training images


@dataclass(frozen=True)
class Machine:
    """What changes nothing of the result but rounding."""

    workers: int | None = None
    device: str = "cpu"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"


def training_preprocess(task: Task, size: tuple[int, int], scales: tuple[Scale, ...]) -> str:
    """`resize(448)|random_crop(384)|flip` at 384, without what would make the task's labels wrong."""
    recipe = tables.find_recipe(RECIPE)
    made = Preprocess(recipe.preprocess if task.crop else recipe.evaluation).at(*size)
    ops = [op for op in made.pixel_ops if not isinstance(op, Flip)]
    return "|".join(map(str, [*ops, *([Flip()] if task.flip else []), *(scales or made.scales)]))


def evaluation_preprocess(size: tuple[int, int], scales: tuple[Scale, ...]) -> str:
    """Straight to the size, without a crop."""
    made = Preprocess(tables.find_recipe(RECIPE).evaluation).at(*size)
    return "|".join(map(str, [*made.pixel_ops, *(scales or made.scales)]))


# Fine-tuned ------------------------------------------------------------------------------------------------------------


def finetune_task(
    task: Task,
    parts: Parts,
    protocol: Protocol,
    *,
    checkpoint: str,
    scales: tuple[Scale, ...],
    changes: tuple[str, ...],
    seed: int,
    data_seed: int,
    out: Path,
    machine: Machine,
    world: World,
) -> Score:
    """A run of its own in `out`, which resumes."""
    options = TrainOptions(
        command="finetune",
        data=parts.where,
        out=str(out),
        from_=checkpoint,
        recipe=RECIPE,
        set=(f"lr={protocol.lr!r}", f"warmup={protocol.warmup}", *changes),
        seed=seed,
        data_seed=data_seed,
        steps=protocol.steps,
        batch_size=protocol.batch_size,
        image_size=protocol.image_size,
        preprocess=training_preprocess(task, protocol.image_size, scales),
        eval_every=0,  # at the end only: test images are not to be looked at before
        workers=machine.workers,
        device=machine.device,
        precision=machine.precision,
    )
    began = time.monotonic()
    previous = Previous(recorded_config(out))
    config = resolve(options, previous, world, parts.dataset())
    finished = train(fit_micro_batch(config, options, previous, world), world)
    found = finished.result
    seconds = float(found["seconds"]) if finished.already else time.monotonic() - began
    return Score(float(found["top1"]), config.images, int(found["n"]), seconds, majority=found.get("majority"))


def drop_weights(out: Path) -> None:
    """Of a finished run: its score is what is wanted, and 57 copies of a large model would fill a disk."""
    shutil.rmtree(out / "checkpoint", ignore_errors=True)
    for state in (out / "state").glob("step-*"):
        shutil.rmtree(state, ignore_errors=True)


# In closed form --------------------------------------------------------------------------------------------------------


def fewshot_task(
    parts: Parts, clf: Classifier, preprocess: Preprocess, *, batch_size: int | None, precision: Precision, machine: Machine,
    world: World,
) -> Score:  # fmt: skip
    """A ridge classifier on frozen features (PAPER 4.4), its l2 chosen by leaving out each example in turn."""
    began = time.monotonic()

    def features(data: Source | Stream) -> tuple[torch.Tensor, list[tuple[int, ...]]]:
        found = compute_features(
            clf, data, preprocess=preprocess, batch_size=batch_size, workers=machine.workers, device=machine.device,
            precision=precision, world=world, bad_images="stop", cache=False,
        )  # fmt: skip
        labelled = np.flatnonzero([bool(own) for own in found.labels])
        return torch.from_numpy(found.values[labelled]), [found.labels[row] for row in labelled]

    values, labels = features(parts.train)
    ridge = Ridge(values, labels, len(parts.classes))
    known, evaluated = count_labels(labels, len(parts.classes)), np.zeros(len(parts.classes), np.int64)
    l2 = ridge.choose()
    right = count = 0
    for block in _blocks(parts.test):
        values, truths = features(block)
        if not values.isfinite().all():
            raise VitreousError(f"{parts.where}: some images have features that are not finite; the model is broken")
        named = ridge.classify(values, l2).tolist() if truths else []
        right += sum(name in own for name, own in zip(named, truths, strict=True))
        count += len(truths)
        evaluated += count_labels(truths, len(parts.classes))
    if not count:
        raise VitreousError(f"{parts.where} {parts.test.split}: no image has a label; there is nothing to evaluate on")
    return Score(right / count, len(labels), count, time.monotonic() - began, l2, majority_rate(evaluated, known, count))


def _blocks(data: Source | Stream) -> Iterator[Source | Stream]:
    """A part at a time, so that memory stays bounded; shards come as one."""
    if isinstance(data, Stream) or len(data) <= _BLOCK:
        yield data
        return
    for start in range(0, len(data), _BLOCK):
        yield data.subset(np.arange(start, min(start + _BLOCK, len(data))))
