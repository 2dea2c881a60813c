"""A closed-form head as a checkpoint: the backbone with its new head, and the features that it was fitted to.

    DIR/  model.safetensors  model.json  README.md  features.safetensors

The first three are a checkpoint like any other. `features.safetensors`, in the format of the feature cache, has the features
and labels of the training images, so that classes can be added without these images, exactly as if all had been there at
once: strength, temperature and leave-one-out accuracy too, which sums over images would not give. Without it, all but that
works.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.classifier import Classifier, describe_parent
from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_folder
from vitreous.core.hashing import hash_file
from vitreous.core.output_dir import check_replaceable
from vitreous.core.untrusted_json import read_record
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.calibration import Calibration, compute_calibration
from vitreous.evaluation.closed_form_head import ClosedFormHead
from vitreous.inference.feature_file import write_features
from vitreous.inference.features import Features
from vitreous.inference.prediction_sets import depends_on, summarise_scores
from vitreous.weights.card import format_card
from vitreous.weights.checkpoint import CARD, DOCUMENT, WEIGHTS, Outputs, write_checkpoint
from vitreous.weights.transfer import adapt

FEATURES = "features.safetensors"
FILES = (WEIGHTS, DOCUMENT, CARD, FEATURES)
FIT, CALIBRATION = "ridge", "leave-one-out temperature"


@dataclass(frozen=True)
class SavedHead:
    """What was written, and how good it is."""

    folder: str
    classes: tuple[str, ...]
    head: dict[str, Any]  # as model.json has it
    calibration: Calibration | None  # on test images, where there were any
    n_test: int
    megabytes: float  # of the features

    def record(self) -> dict[str, Any]:
        measured = {} if self.calibration is None else {"ece": self.calibration.ece, "confidence": self.calibration.confidence}
        return {"folder": self.folder, "classes": list(self.classes), **self.head, **measured}

    def text(self) -> str:
        head, found = self.head, self.calibration
        sure = f"a {self.head['calibration']} of {head['temperature']:.3g}"
        if found is not None:
            sure += f"; on {self.n_test:,} test images, mean confidence {found.confidence:.1%}, accuracy {found.accuracy:.1%}, "
            sure += f"expected calibration error {found.ece:.1%}"
        return "\n".join(
            [
                f"saved {self.folder}: {len(self.classes):,} classes, fitted to {head['n_train']:,} images, l2 = "
                f"{format_l2(head['l2'])}; leave-one-out accuracy {head['left_out']:.1%}",
                f"probabilities ({head['outputs']}) are calibrated by {sure}",
                f"{FEATURES} ({self.megabytes:.1f} MB) is only for --add; try: vitreous predict {self.folder} IMAGE",
            ]
        )


def format_l2(l2: float) -> str:
    return f"2^{math.log2(l2):.0f}" if math.log2(l2).is_integer() else f"{l2:g}"


def check_save_folder(folder: Path, data: Path | None) -> None:
    """It is new, empty or an earlier saved head, which is replaced."""
    ours = bool(read_record(folder / DOCUMENT).get("head"))
    check_replaceable("--save", folder, FILES, ours, data)


def check_left_out(name: str, smallest: tuple[int, str]) -> None:
    """`smallest` is the number of training images of the smallest class of the data called `name`, and its label."""
    few, label = smallest
    if few < 2:
        count = "1 training image" if few else "no training images"
        raise VitreousError(
            f"{name}: class {label!r} has {count}; a head that is saved needs 2 or more of each, to leave one out and calibrate"
        )


def save_head(
    folder: Path,
    clf: Classifier,
    head: ClosedFormHead,
    fitted: Features,
    *,
    source: str,
    preprocess: Preprocess,
    about: dict[str, Any],
    test: Features | None = None,
) -> SavedHead:
    """Write `head` on the backbone of `clf`, which gave the features that it was `fitted` to; all files or none.

    The representation layer stays where the model has one, since features are taken behind it. Outputs are those of the new
    labels, whatever the old head's were. `about` goes into model.json with the rest.
    """
    own = clf.checkpoint
    changed = adapt(own, classes=len(fitted.classes), keep_representation=True)
    outputs: Outputs = "sigmoid" if head.sigmoid else "softmax"
    described = {
        "fit": FIT,
        "l2": head.l2,
        "n_train": len(fitted),
        "left_out": head.left_out,
        "temperature": head.temperature,
        "calibration": CALIBRATION,
        "outputs": outputs,
        "preprocess": str(preprocess),
        **about,
    }
    calibration, metrics = None, {"left_out": head.left_out}
    if test is not None:
        calibration = _evaluate_calibration(head, test)
        metrics = {"n": len(test), "top1": calibration.accuracy, "ece": calibration.ece, **metrics}
    checkpoint = dataclasses.replace(
        changed,
        tensors={**changed.tensors, "head.weight": head.weight, "head.bias": head.bias},
        preprocess=str(preprocess),
        preprocess_guessed=own.preprocess_guessed and preprocess == clf.preprocess,
        classes=fitted.classes,
        outputs=outputs,
        family="vitreous",
        parent=describe_parent(source, own),
        metrics=metrics,
        head=described,
        notes=(),
    )
    if not head.sigmoid:
        own_model = Classifier(checkpoint, copy=False)
        made = depends_on(own_model, preprocess, about["precision"])
        scores = summarise_scores(head.truth.numpy(), {"from": "leave-one-out", "data": about["data"], **made})
        checkpoint = dataclasses.replace(checkpoint, conformal=scores)
    with atomic_folder(folder) as part:
        origin = {"checkpoint": source, "preprocess": str(preprocess), "classes": fitted.classes}
        write_features(part / FEATURES, fitted, origin, "train")
        described["features_sha256"] = hash_file(part / FEATURES)
        write_checkpoint(checkpoint, part, format_card(checkpoint))
        size = (part / FEATURES).stat().st_size
    return SavedHead(str(folder), fitted.classes, described, calibration, 0 if test is None else len(test), size / 1e6)


def _evaluate_calibration(head: ClosedFormHead, test: Features) -> Calibration:
    logits = head.logits(torch.from_numpy(test.values))
    confidence, named = (logits.sigmoid() if head.sigmoid else logits.softmax(dim=1)).max(dim=1)
    right = np.array([name in own for name, own in zip(named.tolist(), test.labels, strict=True)], bool)
    return compute_calibration(confidence.numpy(), right)
