"""The cells of a suite, a task with one seed each, and how they are run: fine-tuned, or in closed form on frozen features."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vitreous.classifier import Classifier
from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path
from vitreous.core.progress import say
from vitreous.data.source import Source, Stream
from vitreous.data.transforms.ops import Flip, Scale
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.majority import count_labels, majority_rate
from vitreous.evaluation.ridge import Ridge
from vitreous.inference.engines.choose import choose_engine
from vitreous.inference.features import compute_features
from vitreous.inference.precision import agreed_precision
from vitreous.inference.runner import default_batch_size
from vitreous.studies.rows import Row
from vitreous.studies.run_cells import describe_stages, drop_states, train_stage
from vitreous.studies.study import Cell, Factors, Stage
from vitreous.studies.suite import Protocol, Suite, Task
from vitreous.studies.suite_data import Parts
from vitreous.studies.suite_options import SuiteOptions
from vitreous.training.recipes import tables
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.transfer import adapt

RECIPE = "finetune-vtab"


def training_preprocess(task: Task, size: tuple[int, int], scales: tuple[Scale, ...]) -> str:
    """`resize(448)|random_crop(384)|flip` at 384, without what would make the task's labels wrong."""
    recipe = tables.find_recipe(RECIPE)
    made = Preprocess(recipe.preprocess if task.crop else recipe.evaluation).at(*size)
    ops = [op for op in made.pixel_ops if not isinstance(op, Flip)]
    return "|".join(map(str, [*ops, *([Flip()] if task.flip else []), *(scales or made.scales)]))


def evaluation_preprocess(mode: str, size: tuple[int, int], checkpoint: Checkpoint) -> str:
    """How test images are prepared: in closed form as the checkpoint says, fine-tuned straight to the size without a crop."""
    own = Preprocess(checkpoint.preprocess)
    if mode == "linear":
        return str(own.at(*size))
    made = Preprocess(tables.find_recipe(RECIPE).evaluation).at(*size)
    return "|".join(map(str, [*made.pixel_ops, *(own.scales or made.scales)]))


@dataclass(frozen=True)
class SuiteRunner:
    options: SuiteOptions
    suite: Suite
    checkpoint: Checkpoint
    world: World

    def cell(self, task: Task, protocol: Protocol, seed: int, role: Literal["main", "trial"] = "main") -> Cell:
        """Named by the settings; which weights and images they are for is in the study's record."""
        if self.options.mode == "linear":
            return Cell(task.name, seed, (), {"group": task.group, "mode": "linear"})
        scales = Preprocess(self.checkpoint.preprocess).scales
        stage = Stage(
            "finetune",
            {
                "recipe": RECIPE, "steps": protocol.steps, "batch_size": protocol.batch_size,
                "image_size": protocol.image_size, "preprocess": training_preprocess(task, protocol.image_size, scales),
                "eval_every": 0,  # at the end only: test images are not to be looked at before
                "seed": seed, "data_seed": self.options.data_seed,
            },
            {"lr": protocol.lr, "warmup": protocol.warmup, **self.options.changes},
        )  # fmt: skip
        factors: Factors = {"group": task.group, "mode": "finetune", "lr": protocol.lr, "steps": protocol.steps}
        return Cell(task.name, seed, (stage,), factors, role=role)

    def run(self, cell: Cell, parts: Parts) -> Row:
        if self.world.is_main:
            images = "test" if cell.role == "main" else "validation"
            say(f"{cell.arm}, seed {cell.seed}: {parts.where}, evaluated on {images} images")
        began = time.monotonic()
        measured = self._finetune(cell, parts) if cell.stages else self._fit(parts)
        row = {"cell": cell.key(), "arm": cell.arm, "seed": cell.seed, "role": cell.role, **cell.factors}
        return {"seconds": round(time.monotonic() - began, 2), **row, "n_train": parts.train.count(), **measured}

    # Fine-tuned --------------------------------------------------------------------------------------------------------

    def folder(self, cell: Cell) -> Path:
        """Where a cell is fine-tuned; after a sweep by its setting, because over more tasks another may be the best."""
        setting = f"lr-{cell.factors['lr']:g}-steps-{cell.factors['steps']}"
        out = user_path(self.options.out)
        if cell.role == "trial":
            return out / "sweep" / setting / cell.arm
        return out / "runs" / cell.arm / f"{f'{setting}-' if self.options.sweep else ''}seed-{cell.seed}"

    def _finetune(self, cell: Cell, parts: Parts) -> Row:
        """A run of its own, which resumes."""
        options, (stage,) = self.options, cell.stages
        given = {"from_": options.checkpoint, "data": parts.where, "out": str(self.folder(cell)), "workers": options.workers}
        given |= {"device": options.device, "precision": options.precision}
        result = train_stage(stage, given, parts.dataset(), self.world)
        return {
            "accuracy": float(result["top1"]), "n": int(result["n"]), "majority": result.get("majority"),
            "flops": result["flops"], "seconds": round(float(result["seconds"]), 2), "config": describe_stages(cell.stages),
            "run": self.folder(cell).relative_to(user_path(options.out)).as_posix(),
        }  # fmt: skip

    def drop_weights(self, cell: Cell) -> None:
        """Of a finished run: only its score is needed, and 57 copies of a large model would fill a disk."""
        if cell.stages and self.world.is_main and (cell.role == "trial" or not self.options.keep_weights):
            shutil.rmtree(self.folder(cell) / "checkpoint", ignore_errors=True)
            drop_states(self.folder(cell))

    # In closed form ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _frozen(self) -> tuple[Classifier, Mapping[str, Any]]:
        """The model, and how its features are computed: made once for all tasks."""
        options = self.options
        clf = Classifier(adapt(self.checkpoint, image_size=self.suite.protocol.image_size), copy=False)
        precision = agreed_precision(options.precision, self.world).name
        batch_size = options.batch_size or default_batch_size(clf.preprocess, self.world.device)
        for note in choose_engine(clf, options.engine, world=self.world, precision=precision, batch_size=batch_size):
            if self.world.is_main:
                say(note)
        return clf, {
            "preprocess": clf.preprocess, "batch_size": batch_size, "workers": options.workers,
            "device": options.device, "precision": precision,
        }  # fmt: skip

    def _features(self, data: Source | Stream) -> tuple[torch.Tensor, list[tuple[int, ...]]]:
        """Of the images that have labels."""
        clf, how = self._frozen
        found = compute_features(clf, data, **how, world=self.world, bad_images="stop", cache=False)
        labelled = np.flatnonzero([bool(own) for own in found.labels])
        return torch.from_numpy(found.values[labelled]), [found.labels[row] for row in labelled]

    def _fit(self, parts: Parts) -> Row:
        """A ridge classifier on frozen features (PAPER 4.4), its l2 chosen by leaving out each example in turn."""
        values, labels = self._features(parts.train)
        tests, truths = self._features(parts.test)
        n = len(truths)
        if not n:
            raise VitreousError(f"{parts.where} {parts.test.split}: no image has a label; there is nothing to evaluate on")
        if not tests.isfinite().all():
            raise VitreousError(f"{parts.where}: some images have features that are not finite; the model is broken")
        ridge = Ridge(values, labels, len(parts.classes))
        l2 = ridge.choose()
        right = sum(name in own for name, own in zip(ridge.classify(tests, l2).tolist(), truths, strict=True))
        known, counts = (count_labels(own, len(parts.classes)) for own in (labels, truths))
        return {
            "accuracy": right / n, "n": n, "majority": majority_rate(counts, known, n), "n_train": len(labels), "l2": l2,
            "flops": 0.0,  # of training
        }  # fmt: skip
