"""An exported file against the original, on images, at several batch sizes: the file is kept only if they agree.

Both compute in float32, in another order, so they differ by rounding. Differences are relative to the largest number of the
original's output: of the models here they are 1e-6 to 3e-5, and what a wrong operation makes is above 1e-3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inference.engines.engine import Engine
from vitreous.inference.outputs import Outputs, concatenate
from vitreous.inference.runner import Runner
from vitreous.inspection.images import data_images, data_split, drawn_scenes, fixed_size

TOLERANCE = 1e-4
IMAGES = 16
_BATCHES = (1, 4, IMAGES - 5)  # none of them the one that was traced


@dataclass(frozen=True)
class Agreement:
    """How far an exported file is from the original."""

    data: str
    images: int
    logits: float  # largest difference, relative to the original's largest logit
    features: float
    same_class: int  # images whose most likely class is the same
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return max(self.logits, self.features) <= TOLERANCE

    def text(self) -> str:
        return (
            f"run against the original on {self.images} images of {self.data}: logits differ by {self.logits:.1e}, features by "
            f"{self.features:.1e} of the largest ({'within' if self.agrees else 'BEYOND'} {TOLERANCE:.0e}), "
            f"{self.same_class} of {self.images} the same class"
        )


def read_check_images(clf: Classifier, data: str | None) -> tuple[str, Tensor, tuple[str, ...]]:
    """What they are called, and a few of them, preprocessed (B, C, H, W)."""
    preprocess, _ = fixed_size(clf)
    if data is None:
        reading = drawn_scenes(clf, preprocess, IMAGES, IMAGES, seed=0)
    else:
        source, _ = data_split(data)
        reading = data_images(source, preprocess, IMAGES, IMAGES, seed=0)
    pixels = [image.pixels for image in reading.images]
    if not pixels:
        raise VitreousError(f"--check {data}: none of its images can be read")
    return reading.where, torch.stack(pixels), tuple(reading.notes) if data is not None else ()


def compare_engines(clf: Classifier, exported: Engine, images: Tensor, data: str) -> Agreement:
    """The same images through torch and through the exported file."""
    parts = images.split(_split_sizes(len(images)))
    with Runner(clf.model) as runner:
        ours = concatenate(map(runner.run, parts))
    theirs = concatenate(exported.run(clf.model, part, "head", "float32") for part in parts)
    same = int((ours.logits.argmax(1) == theirs.logits.argmax(1)).sum())
    return Agreement(data, len(images), _distance(ours, theirs, 0), _distance(ours, theirs, 1), same)


def _split_sizes(total: int) -> list[int]:
    sizes: list[int] = []
    for size in _BATCHES:
        if sum(sizes) < total:
            sizes.append(min(size, total - sum(sizes)))
    return sizes if sum(sizes) == total else [*sizes, total - sum(sizes)]


def _distance(ours: Outputs, theirs: Outputs, which: int) -> float:
    a, b = ours[which].double(), theirs[which].double()
    if a.shape != b.shape or not b.isfinite().all():
        return float("inf")
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-12))
