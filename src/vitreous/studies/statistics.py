"""Paired statistics over seeds: t intervals, equivalence tests, a bootstrap over seeds and test images, and Holm's correction.

A sign-flip test over n seeds cannot get below p = 2 / 2^n (0.031 at six), so the rule of every study is the paired t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


class Estimate(NamedTuple):
    effect: float
    low: float
    high: float
    p: float  # two-sided, against no effect
    seeds: int


def student_tail(t: float, freedom: int) -> float:
    """P(T > t) of Student's t. With t = sqrt(n) tan(a) the density is cos(a)^(n-1), which Gauss-Legendre integrates."""
    if t < 0:
        return 1 - student_tail(-t, freedom)
    low, high = math.atan(t / math.sqrt(freedom)), math.pi / 2
    angles = (high - low) / 2 * _NODES + (high + low) / 2
    integral = (high - low) / 2 * float(_WEIGHTS @ np.cos(angles) ** (freedom - 1))
    log_constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return math.exp(log_constant) * integral


def student_quantile(probability: float, freedom: int) -> float:
    """t with P(T <= t) = probability, for a probability above a half; by bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - student_tail(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def paired_t(effects: Sequence[float], level: float = LEVEL) -> Estimate:
    """The mean of the seeds' effects with its interval. One seed has no interval."""
    values = np.asarray(effects, np.float64)
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return Estimate(mean, -math.inf, math.inf, 1.0, n)
    error = float(values.std(ddof=1)) / math.sqrt(n)
    half = student_quantile(1 - level / 2, n - 1) * error
    p = (1.0 if mean == 0 else 0.0) if error == 0 else 2 * student_tail(abs(mean) / error, n - 1)
    return Estimate(mean, mean - half, mean + half, p, n)


def equivalence_p(effects: Sequence[float], margin: float) -> float:
    """Two one-sided t tests: the larger p of "below -margin" and "above margin"."""
    values = np.asarray(effects, np.float64)
    if len(values) < 2:
        return 1.0
    distance = margin - abs(float(values.mean()))
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(distance <= 0) if error == 0 else student_tail(distance / error, len(values) - 1)


def bootstrap(differences_SI: NDArray[np.float64], rounds: int = 2000, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean of (seeds, test images), both drawn with replacement in every round."""
    seeds, images = differences_SI.shape
    random = np.random.default_rng(seed)
    means = np.empty(rounds)
    for number in range(rounds):
        of_seeds = np.bincount(random.integers(seeds, size=seeds), minlength=seeds)
        of_images = np.bincount(random.integers(images, size=images), minlength=images)
        means[number] = of_seeds @ differences_SI @ of_images / (seeds * images)
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def holm(p_values: Mapping[str, float], family: int) -> dict[str, float]:
    """Adjusted p values of a family of tests; those that are not there count as p = 1."""
    adjusted, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda entry: entry[1])):
        largest = max(largest, min(1.0, (family - rank) * p))
        adjusted[name] = largest
    return adjusted
