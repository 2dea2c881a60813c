"""The weights of the few-shot classifier for all 30 l2, against one fit of scikit-learn's Ridge on the same data.

    python benchmarks/ridge.py [--images 10000] [--width 768] [--classes 1000] [--decades 1] [--runs 5]

Both are timed in turn in one process, so that a busy machine slows both. Ours begins with float32 features and labels, and
standardises; scikit-learn is given what it needs, the standardised features with their constant column and the targets, in
float64. Ours is then compared with scikit-learn's weights: without that, a time means nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn import linear_model

from vitreous.evaluation.ridge import BIAS, L2S, Ridge


def timed(function: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, processor = time.perf_counter(), time.process_time()
    result = function()
    return time.perf_counter() - wall, time.process_time() - processor, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--decades", type=float, default=1.0, help="how far the sizes of the directions are spread")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    labels = rng.integers(0, options.classes, options.images)
    means = rng.normal(size=(options.classes, options.width))
    features = means[labels] + 2 * rng.normal(size=(options.images, options.width))
    turn = np.linalg.qr(rng.normal(size=(options.width, options.width)))[0]
    features = (features * np.logspace(0, -options.decades, options.width) @ turn).astype(np.float32)
    own = [(int(label),) for label in labels]
    x = features.astype(np.float64)
    x = np.hstack([(x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5), np.full((len(x), 1), BIAS)])
    y = np.full((options.images, options.classes), -1.0)
    y[np.arange(options.images), labels] = 1.0

    def ours() -> Ridge:
        found = Ridge(torch.from_numpy(features), own, options.classes)
        for _ in found.weights_for(L2S):
            pass
        return found

    def theirs() -> Any:
        return linear_model.Ridge(alpha=1024.0, fit_intercept=False).fit(x, y)

    times: dict[str, list[tuple[float, float]]] = {"vitreous": [], "scikit-learn": []}
    for _ in range(options.runs):
        wall, processor, model = timed(theirs)
        times["scikit-learn"].append((wall, processor))
        wall, processor, found = timed(ours)
        times["vitreous"].append((wall, processor))
    fit = timed(lambda: Ridge(torch.from_numpy(features), own, options.classes))[0]
    worst = 0.0
    for l2, weights in zip(L2S, found.weights_for(L2S), strict=True):
        if l2 in (L2S[0], 1.0, 1024.0, L2S[-1]):
            model = linear_model.Ridge(alpha=l2, fit_intercept=False).fit(x, y)
            worst = max(worst, float(np.abs(weights.numpy() - model.coef_.T).max()))

    spanned = len(found._spanning(L2S)[0])
    print(f"{options.images:,} x {options.width} features, {options.classes:,} classes, median of {options.runs} runs")
    print(f"{torch.get_num_threads()} threads of {os.cpu_count()} cores; all {len(L2S)} l2 spanned by {spanned} products")
    for name, what in (("vitreous", f"{len(L2S)} l2, the fit alone {fit:.2f} s"), ("scikit-learn", "one l2")):
        wall, processor = (statistics.median(column) for column in zip(*times[name], strict=True))
        print(f"{name:13} wall {wall:.2f} s, processor {processor:.2f} s ({what})")
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(times["vitreous"], times["scikit-learn"], strict=True)]
    print(
        f"ratio of wall times, run by run: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}"
    )
    print(f"largest difference of a weight from scikit-learn's: {worst:.1e}")


if __name__ == "__main__":
    main()
