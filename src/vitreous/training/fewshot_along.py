"""Few-shot accuracy of the current weights at each evaluation of a run (figures 4 and 9), which leaves training as it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import fmean

import torch

from vitreous.classifier import Classifier
from vitreous.core.progress import silence
from vitreous.evaluation.fewshot import Shots, fewshot, parse_shots
from vitreous.evaluation.fewshot_tasks import TaskImages, load_task, open_task
from vitreous.training.callbacks import Callback
from vitreous.training.loop import Loop
from vitreous.training.options import TrainOptions
from vitreous.training.run_folder import FEWSHOT
from vitreous.training.validation import Evaluation
from vitreous.weights.checkpoint import Checkpoint

DRAWS = 3  # subsets of the labelled images, whose accuracies are averaged


def open_fewshot(options: TrainOptions) -> TaskImages | None:
    """The images of --fewshot: of each class no more than the draws need."""
    if options.fewshot is None:
        return None
    shots = _shots(options)
    pool = None if "all" in shots else DRAWS * max(number for number in shots if number != "all")
    return open_task(options.fewshot, shots=shots, data_seed=options.data_seed, per_class=pool, bad_images=options.bad_images)


def _shots(options: TrainOptions) -> tuple[Shots, ...]:
    return parse_shots(options.shots) or (5,)


@dataclass(frozen=True)
class FewshotAlong(Callback):
    loop: Loop
    images: TaskImages

    def on_evaluated(self, evaluation: Evaluation, is_best: bool) -> None:
        config, options, began = self.loop.config, self.loop.config.options, time.monotonic()
        tensors = self.loop.tensors()  # all ranks together
        checkpoint = Checkpoint(config=config.model, tensors=tensors, preprocess=config.recipe.evaluation)
        with torch.random.fork_rng(devices=[]), silence():
            clf = Classifier(checkpoint, copy=False)
            task, _ = load_task(
                clf,
                self.images,
                clf.preprocess,
                workers=options.workers,
                precision=config.precision,
                world=self.loop.world,
                bad_images=options.bad_images,
                cache=False,
            )
            rounds = fewshot([task], shots=_shots(options), seeds=range(DRAWS))
        found = {each: fmean(one.accuracy for one in rounds if one.shots == each) for each in _shots(options)}
        measured = {f"{FEWSHOT}_{each}": accuracy for each, accuracy in found.items()}
        speed = (len(task.train) + len(task.test)) / max(1e-9, time.monotonic() - began)
        self.loop.emit_evaluation(FEWSHOT, {"loss": None, **measured, "n": len(task.test)}, speed)
        listed = ", ".join(f"{each} shots {accuracy:.2%}" for each, accuracy in found.items())
        self.loop.say(
            f"step {self.loop.progress.step:,}: few-shot accuracy, {listed} of {len(task.test):,} images of {task.name}"
        )
