"""Prediction sets, measured on held-out images, and the scores that they are made from (see `inference.prediction_sets`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.core.hashing import hash_words
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.intervals import Method, share_interval
from vitreous.evaluation.predictions import Predictions
from vitreous.inference.prediction_sets import PredictionSets, depends_on, summarise_scores
from vitreous.weights.checkpoint import DOCUMENT, write_conformal
from vitreous.weights.locate import locate


def measure_coverage(
    predictions: Predictions, sets: PredictionSets, method: Method = "wilson", seed: int = 0
) -> dict[str, Any]:
    """How often sets hold the true class, how large they are, and how often the model is right where it does not abstain."""
    assert predictions.set_sizes is not None
    assert predictions.covered is not None
    labelled = predictions.labelled()
    sizes, covered, right = predictions.set_sizes[labelled], predictions.covered[labelled], predictions.right()[labelled]
    alone, n = sizes == 1, int(labelled.sum())
    return {
        "asked": sets.coverage,
        "measured": float(covered.mean()),
        "interval": list(share_interval(int(covered.sum()), n, method, seed)),
        "n": n,
        "threshold": sets.threshold,
        "mean_size": float(sizes.mean()),
        "abstained": float(1 - alone.mean()),
        "answered_top1": float(right[alone].mean()) if alone.any() else None,
    }


def describe_coverage(found: Mapping[str, Any]) -> str:
    low, high = (100 * end for end in found["interval"])
    answered = found["answered_top1"]
    sure = "" if answered is None else f", top-1 of the others {answered:.2%}"
    return (
        f"{found['measured']:.2%} ({low:.2f} to {high:.2f}), target {found['asked']:.0%}; {found['mean_size']:.2f} classes in "
        f"a set, abstains on {found['abstained']:.1%}{sure}"
    )


def checkpoint_folder(source: str) -> Path:
    """Where `model.json` lies, which the scores go into."""
    path = locate(source).path
    for folder in (path, path / "checkpoint"):  # of a run, too
        if (folder / DOCUMENT).is_file():
            return folder
    raise VitreousError(
        f"--save-calibration: {source} has no {DOCUMENT} to keep the scores in; make it a checkpoint of this program with "
        f"`vitreous convert {source} DIR`"
    )


def save_calibration(
    folder: Path, clf: Classifier, predictions: Predictions, preprocess: Preprocess, precision: str
) -> dict[str, Any]:
    """Write the scores of these predictions into the checkpoint. Says what they are of, without the scores themselves."""
    labelled = predictions.labelled()
    about = {
        "from": "held-out images",
        "data": predictions.where,
        "split": predictions.split,
        "images": hash_images(predictions),
        **depends_on(clf, preprocess, precision),
    }
    write_conformal(folder, summarise_scores(predictions.truth[labelled], about))
    return {"saved": str(folder / DOCUMENT), "n": int(labelled.sum()), **about}


def hash_images(predictions: Predictions) -> str:
    """A hash of the calibration images, so that coverage measured on the same ones is noted."""
    return hash_words(*sorted(id for id, own in zip(predictions.ids, predictions.labels, strict=True) if own))
