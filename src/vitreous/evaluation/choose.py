"""Which images to label next, from frozen features: active learning without training.

    rows = choose_images(pool, labelled, 100, "combined", seed=0)

Diversity is facility location [Nemhauser et al. 1978; Wei et al. 2015]: of every image x that may be labelled, the most similar
one among those labelled and those chosen represents it, and images are chosen one by one so that

    f(S) = sum over x of w(x) max over s in S of cos(x, s)

grows most. An image far from all others gains little, one amid many that nothing represents gains much. Cosines are of centred
features: what all images have in common says nothing. f is submodular, so a gain never grows: one computed before is a bound,
and only the few largest are computed again (lazy greedy [Minoux 1978]).

Uncertainty is the margin between the two most likely classes of a closed-form head fitted to the labelled images, with the
strength and the temperature that leaving each out gives. Combined, w(x) is 1 - margin: an image counts as much as the head
cannot tell what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.evaluation.closed_form_head import fit_head
from vitreous.inference.features import Features
from vitreous.inference.nearest_neighbours import Floats, normalise

Strategy = Literal["combined", "uncertainty", "diversity", "random"]

REPRESENTED = 20_000  # images that are to be represented; of more, a random sample of this size gives nearly the same sum
_BLOCK = 256  # candidates whose gains are computed together at first, and
_AGAIN = 32  # those computed again before one is chosen


@dataclass(frozen=True, eq=False)
class PoolPredictions:
    """Predictions of a head fitted to the labelled images, for all others."""

    classes: NDArray[np.int64]  # (n, 2): the most likely first
    probabilities: Floats  # (n, 2), of these
    margins: Floats  # (n,): 0 where the head cannot tell, 1 where it is sure


def choose_images(
    pool: Floats, labelled: Features | None, count: int, strategy: Strategy = "combined", seed: int = 0
) -> tuple[NDArray[np.int64], PoolPredictions | None]:
    """`count` rows of `pool` (n, D), the most useful first, and predictions for all rows if the labels have two classes.

    Without two classes among the labelled images there is nothing to be uncertain between: `combined` is diversity then.
    """
    if not 1 <= count <= len(pool):
        raise VitreousError(f"cannot choose {count:,} of {len(pool):,} images; choose a smaller number")
    rng = np.random.default_rng(seed)
    predictions = predict_pool(pool, labelled) if labelled is not None and has_two_classes(labelled) else None
    if strategy == "random":
        return rng.permutation(len(pool))[:count], predictions
    if strategy == "uncertainty":
        if predictions is None:
            raise VitreousError("uncertainty is between classes; label images of two or more first, or use diversity")
        return np.argsort(predictions.margins, kind="stable")[:count], predictions
    weights = 1 - predictions.margins if predictions is not None and strategy == "combined" else np.ones(len(pool), np.float32)
    known = labelled.values if labelled is not None else pool[:0]
    return cover(pool, known, count, weights, rng), predictions


def has_two_classes(labelled: Features) -> bool:
    return len({label for own in labelled.labels for label in own}) > 1


def predict_pool(pool: Floats, labelled: Features) -> PoolPredictions:
    """Of images with several labels, the margin is that of the class which is closest to even odds."""
    head = fit_head(labelled)
    logits = head.logits(torch.from_numpy(pool))
    probabilities = logits.sigmoid() if head.sigmoid else logits.softmax(dim=1)
    best, classes = probabilities.topk(2, dim=1)
    margins = (2 * probabilities - 1).abs().amin(dim=1) if head.sigmoid else best[:, 0] - best[:, 1]
    return PoolPredictions(classes.numpy(), best.numpy(), margins.numpy())


def cover(pool: Floats, known: Floats, count: int, weights: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of `pool` that represent it best beside the `known` images, by `weights` (n,) of what is to be represented."""
    mean = pool.mean(axis=0)
    candidates, known = normalise(pool - mean), normalise(known - mean)
    if len(pool) > REPRESENTED:
        rows = np.sort(rng.choice(len(pool), REPRESENTED, replace=False))
        targets, weights = candidates[rows], weights[rows]
    else:
        targets = candidates
    covered = np.full(len(targets), -1, np.float32)  # by the most similar image so far
    for start in range(0, len(known), _BLOCK):
        np.maximum(covered, (targets @ known[start : start + _BLOCK].T).max(axis=1), out=covered)

    def gains(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        better = targets @ candidates[rows].T - covered[:, None]
        return np.asarray(weights @ np.maximum(better, 0), np.float64)

    every = np.arange(len(pool))
    bounds = np.concatenate([gains(every[start : start + _BLOCK]) for start in range(0, len(pool), _BLOCK)])
    chosen: list[int] = []
    fresh = np.ones(len(pool), bool)  # whose bound is the gain itself
    while len(chosen) < count:
        while not fresh[best := int(bounds.argmax())]:
            stale = np.flatnonzero(~fresh & (bounds >= 0))
            stale = stale[np.argsort(-bounds[stale], kind="stable")[:_AGAIN]]
            bounds[stale], fresh[stale] = gains(stale), True
        chosen.append(best)
        np.maximum(covered, targets @ candidates[best], out=covered)
        bounds[best] = -np.inf
        fresh[:] = False
    return np.array(chosen, np.int64)
