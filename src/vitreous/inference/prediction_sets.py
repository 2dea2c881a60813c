"""Sets of classes that hold the true one with a chosen probability: split conformal prediction [Vovk et al. 2005].

Of n images that the model was not trained on, the score is 1 - p, p being the probability of the true class (LAC [Sadinle et
al. 2019]). With k = ceil((n + 1) coverage), the set of a new image has all classes whose score is at most the k-th smallest of
these n. If the new image could as well have been one of them, its set holds the true class with probability k / (n + 1) or
more, whatever the model. The most likely class is always in the set, which can only add to that: no set is empty.

LAC and not APS [Romano et al. 2020]: its sets are the smallest on average, a class is in by its own probability alone, and
nothing is drawn at random, so that an image has one set. APS spreads the coverage more evenly over hard and easy images, for
larger sets.

A checkpoint keeps its scores in `model.json`, with what they depend on, which is compared before they are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.core.errors import VitreousError, check_share
from vitreous.inference.feature_cache import weights_hash
from vitreous.inference.predictions import class_probabilities, top_classes
from vitreous.inference.runner import LoadedModel

MOST = 1000  # scores that are kept; of more, the ranks between are left out, and the next higher score stands for them
_ROUNDING = 1e-6  # of a probability, from one batch size to another


@dataclass(frozen=True)
class PredictionSets:
    """Which classes an image may have."""

    coverage: float
    threshold: float  # the lowest probability of a class in a set

    def members(self, probabilities: Tensor) -> Tensor:
        """Which classes (B, C) are in the sets; the most likely one is in any case."""
        return (probabilities >= self.threshold - _ROUNDING) | (probabilities == probabilities.amax(dim=1, keepdim=True))

    def names(self, logits: Tensor, classes: Sequence[str]) -> list[tuple[str, ...]]:
        """The classes of each set, best first."""
        counts = self.members(class_probabilities(logits, sigmoid=False)).sum(dim=1).tolist()
        order = top_classes(logits, max(counts, default=0)).tolist()
        return [tuple(classes[index] for index in row[:count]) for row, count in zip(order, counts, strict=True)]


def summarise_scores(truth: NDArray[np.floating[Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    """What `model.json` keeps, of the probabilities (n,) of the true classes of images that were left out of training."""
    scores, n = np.sort(1 - truth.astype(np.float64)), len(truth)
    ranks = np.unique(np.ceil(np.arange(1, MOST + 1) * n / MOST).astype(int)) if n > MOST else np.arange(1, n + 1)
    return {"method": "LAC", "n": n, **about, "ranks": ranks.tolist(), "scores": scores[ranks - 1].tolist()}


def conformal_rank(n: int, coverage: float) -> int:
    """k of n; above n where there are too few."""
    return math.ceil((n + 1) * coverage - 1e-9)  # 10 * 0.9 is 9, whatever the rounding


def conformal_threshold(conformal: Mapping[str, Any], coverage: float) -> float:
    """The lowest probability of a class in a set, from what `summarise_scores` gave."""
    try:
        n, ranks, scores = int(conformal["n"]), np.array(conformal["ranks"], int), np.array(conformal["scores"], float)
        whole = n > 0 and ranks[-1] == n and ranks.shape == scores.shape and bool(np.isfinite(scores).all())
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise VitreousError(f"--coverage {coverage:g}: the calibration in model.json is damaged; make it again")
    rank = conformal_rank(n, coverage)
    if rank > n:
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise VitreousError(
            f"--coverage {coverage:g}: needs {needed:,} or more images to calibrate on, and there were {n:,}; lower it"
        )
    return 1 - float(scores[np.searchsorted(ranks, rank)])  # of the rank itself, or the next that is kept


def depends_on(clf: LoadedModel, preprocess: object, precision: str) -> dict[str, Any]:
    """What the scores depend on; with anything else the coverage of the sets is unknown."""
    return {
        "weights": weights_hash(clf),
        "preprocess": str(preprocess),
        "precision": precision,
        "merge_tokens": getattr(clf.model, "merge_tokens", 0),
    }


def build_prediction_sets(
    clf: LoadedModel, name: str, coverage: float, *, preprocess: object = None, precision: str = "float32"
) -> PredictionSets:
    """Sets for the classifier called `name`; refused where its scores are missing or of something else."""
    check_share(coverage=coverage)
    remedy = f"`vitreous evaluate {name} DATA --save-calibration`, DATA being labelled images that it was not trained on"
    if clf.sigmoid:
        raise VitreousError(f"--coverage {coverage:g}: {name} gives images several classes (sigmoid); sets are for one each")
    if not clf.conformal:
        raise VitreousError(f"--coverage {coverage:g}: {name} is not calibrated; once, run {remedy}")
    own = depends_on(clf, preprocess or clf.preprocess, precision)
    for what, value in own.items():
        if clf.conformal.get(what) != value:
            ours = "other weights" if what == "weights" else f"{what} {clf.conformal.get(what)}, not {value}"
            raise VitreousError(f"--coverage {coverage:g}: {name} was calibrated with {ours}; calibrate it so with {remedy}")
    return PredictionSets(coverage, conformal_threshold(clf.conformal, coverage))
