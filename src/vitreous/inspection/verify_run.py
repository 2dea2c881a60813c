"""`vitreous verify` as a whole: a checkpoint against another one, or against recorded outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.classifier import load
from vitreous.core.errors import VitreousError
from vitreous.inference.engines.exported_file import refuse_exported
from vitreous.inspection.compare import Verification, compare_checkpoints
from vitreous.inspection.recorded_outputs import compare_recorded, read_recorded


def run_verification(checkpoint: str, against: str, images: Sequence[str], tolerance: float | None) -> Verification:
    if tolerance is not None and not 0 <= tolerance < 1:
        raise VitreousError(f"--tolerance {tolerance}: must be at least 0 and less than 1")
    options = {} if tolerance is None else {"tolerance": tolerance}
    for source in (checkpoint, against):
        refuse_exported(source, "verify")
    clf = load(checkpoint)
    outputs = read_recorded(Path(against))
    if outputs is not None:
        found = compare_recorded(clf, outputs, **options)
    else:
        other = load(against)
        found = compare_checkpoints(clf, other, list(images) or [draw_image()], **options)
        found = replace(found, notes=(*other.notes, *found.notes))
    said = (*clf.notes, clf.preprocessing_note(), *found.notes)
    return replace(found, notes=said, preprocess=str(clf.preprocess))


def draw_image() -> NDArray[np.uint8]:
    """Neither flat nor noise: colours that change smoothly, with some grain."""
    random = np.random.default_rng(0)
    height, width = 300, 400
    y, x = np.mgrid[:height, :width] / 100.0
    waves = [np.sin(a * x + b * y + c) for a, b, c in random.uniform(-4, 4, (3, 3))]
    grain = random.normal(0, 8, (height, width, 3))
    return np.clip(127.5 + 100 * np.stack(waves, axis=2) + grain, 0, 255).astype(np.uint8)
