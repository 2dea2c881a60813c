"""Accuracy against labels: images chosen by `vitreous choose`, beside random ones.

    python benchmarks/choose.py CHECKPOINT NAME=DATA [NAME=DATA ...] [--image-size 112] [--rounds 8] [--seeds 5] [--per-class 1]

For each data set and seed, --per-class times as many random training images as there are classes are labelled (some classes
have none, then), and in each round as many again are chosen by each strategy, from the same start. The closed-form head of
`fewshot --save` is fitted to all labelled images and evaluated on the test split, or else the validation split. Of larger sets,
2,000 training and 1,000 test images are drawn by data seed 0. The last table has the mean difference from random over all
rounds, with the 95 % interval of the mean of the seeds (Student's t), and how many labels `combined` needs for random's last
accuracy.
"""

from __future__ import annotations

import argparse
import statistics
from typing import get_args

import numpy as np
import torch

import vitreous
from vitreous.core.table import table
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.splits import random_subset
from vitreous.evaluation.choose import Strategy, choose_images
from vitreous.evaluation.closed_form_head import fit_head
from vitreous.inference.features import Features, compute_features

T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}  # Student's, by the number of seeds


def measure_curve(train: Features, test: Features, strategy: Strategy, step: int, rounds: int, seed: int) -> list[float]:
    """The accuracy after each round, the random start first."""
    values, targets = torch.from_numpy(test.values), test.targets()
    labelled = np.random.default_rng(seed).permutation(len(train))[:step]
    curve = []
    for number in range(rounds + 1):
        known = train.some(labelled)
        named = fit_head(known).logits(values).argmax(dim=1).numpy()
        curve.append(float((named == targets).mean()))
        rest = np.setdiff1d(np.arange(len(train)), labelled)
        rows, _ = choose_images(train.values[rest], known, step, strategy, seed=1000 * seed + number)
        labelled = np.concatenate([labelled, rest[rows]])
    return curve


def labels_needed(curve: list[float], accuracy: float, step: int) -> str:
    """How many labels reach an accuracy, between two rounds in proportion."""
    best = np.maximum.accumulate(curve)
    if best[-1] < accuracy:
        return f"> {step * len(curve)}"
    return f"{np.interp(accuracy, best, step * np.arange(1, len(curve) + 1)):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--per-class", type=int, default=1)
    options = parser.parse_args()
    clf = vitreous.load(options.checkpoint, image_size=options.image_size)
    strategies: tuple[Strategy, ...] = get_args(Strategy)[::-1]  # random first
    summary = []
    for named in options.data:
        name, _, where = named.rpartition("=")
        dataset, parts = open_data(where), []
        for split, most in (("train", 2000), ("test" if "test" in dataset.splits else "validation", 1000)):
            source = dataset.source(split)
            assert isinstance(source, Source)
            parts.append(compute_features(clf, random_subset(source, most, 0) if len(source) > most else source, workers=0))
        train, test = parts
        step = options.per_class * len(train.classes)
        curves = {
            s: [measure_curve(train, test, s, step, options.rounds, seed) for seed in range(options.seeds)] for s in strategies
        }
        means = {
            strategy: [statistics.mean(column) for column in zip(*found, strict=True)] for strategy, found in curves.items()
        }
        rows = [(strategy, *(f"{100 * value:.1f}" for value in mean)) for strategy, mean in means.items()]
        title = f"{name}: {len(train):,} training images, {len(train.classes)} classes, {len(test):,} test images; % by labels"
        print(table(("", *(step * (number + 1) for number in range(options.rounds + 1))), rows, title=title), flush=True)
        own: list[str] = [name]
        for strategy in strategies[1:]:
            pairs = zip(curves[strategy], curves["random"], strict=True)
            gains = [100 * (statistics.mean(ours[1:]) - statistics.mean(random[1:])) for ours, random in pairs]
            half = T95[len(gains)] * statistics.stdev(gains) / len(gains) ** 0.5
            own.append(f"{statistics.mean(gains):+.1f} ± {half:.1f}")
        target = means["random"][-1]
        own += [str(step * (options.rounds + 1)), labels_needed(means["combined"], target, step)]
        summary.append(own)
    heads = ("", *(f"{strategy} - random" for strategy in strategies[1:]), "labels, random", "combined, equal accuracy")
    print(table(heads, summary, title=f"points of accuracy over {options.rounds} rounds, {options.seeds} seeds"))


if __name__ == "__main__":
    main()
