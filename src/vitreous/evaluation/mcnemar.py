"""Paired comparison of two models on the same images with McNemar's exact test.

Images that both get right, or both wrong, say nothing about which is better; all the evidence lies in those that only one gets
right. Two separate intervals throw this away, and overlap where the pairs leave no doubt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.predictions import Predictions

SURE = 0.05  # p below which a difference is called one


@dataclass(frozen=True)
class PairedComparison:
    """Images by who gets them right."""

    both: int
    first: int  # the first model alone
    second: int
    neither: int

    @property
    def n(self) -> int:
        return self.both + self.first + self.second + self.neither

    @property
    def difference(self) -> float:
        """The second's accuracy minus the first's."""
        return (self.second - self.first) / self.n

    @property
    def p(self) -> float:
        """McNemar's exact test, two-sided: how often a fair coin would divide the disagreements as unevenly as this."""
        flips, fewer = self.first + self.second, min(self.first, self.second)
        if 2 * fewer >= flips - 1:  # as even as can be; the sum below would be more than half of all
            return 1.0
        log = math.lgamma(flips + 1) - flips * math.log(2)
        terms = [log - math.lgamma(k + 1) - math.lgamma(flips - k + 1) for k in range(fewer + 1)]
        return min(1.0, 2 * math.fsum(math.exp(term) for term in terms))

    @property
    def interval(self) -> tuple[float, float]:
        """Of the difference, 95 %: Newcombe's of paired shares (1998, method 10), from Wilson's and the correlation."""
        a, b, c, d, n = self.both, self.second, self.first, self.neither, self.n
        p1, p2 = (a + b) / n, (a + c) / n
        (low1, high1), (low2, high2) = wilson(p1, n), wilson(p2, n)
        margins = (a + b) * (c + d) * (a + c) * (b + d)
        product = float(a * d - b * c)
        if product > 0:
            product = max(product - n / 2, 0.0)  # the correction for continuity, without which it is too narrow
        phi = product / math.sqrt(margins) if margins else 0.0
        below = _reach(p1 - low1, high2 - p2, phi)
        above = _reach(high1 - p1, p2 - low2, phi)
        return max(-1.0, self.difference - below), min(1.0, self.difference + above)

    def sentence(self, first: str = "A", second: str = "B") -> str:
        low, high = (100 * end for end in self.interval)
        apart = f"only one of them is right on {self.first + self.second:,} of {self.n:,} images"
        points = 100 * self.difference
        if not self.first + self.second:
            return f"{first} and {second} get the same {self.both:,} of {self.n:,} images right"
        if not points:
            return f"{first} and {second} get equally many right (difference {low:+.1f} to {high:+.1f} points); {apart}"
        better, worse = (second, first) if points > 0 else (first, second)
        low, high = (low, high) if points > 0 else (-high, -low)
        lies = f"{abs(points):.1f} points ({low:.1f} to {high:.1f}), p = {_format_p(self.p)}"
        if self.p >= SURE:
            return f"{better} is ahead of {worse} by {lies}, which may be chance; {apart}"
        return f"{better} is better than {worse} by {lies}; {apart}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "n": self.n,
            "both": self.both,
            "first_only": self.first,
            "second_only": self.second,
            "neither": self.neither,
            "difference": self.difference,
            "interval": list(self.interval),
            "p": self.p,
        }


def paired_comparison(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> PairedComparison:
    """From whether each image was right, in the same order."""
    return PairedComparison(
        int((first & second).sum()), int((first & ~second).sum()), int((second & ~first).sum()), int((~first & ~second).sum())
    )


def shared_rows(first: Predictions, second: Predictions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of both for the images that have labels for both, found by their place in the data."""
    _, ours, theirs = np.intersect1d(first.numbers, second.numbers, assume_unique=True, return_indices=True)
    known = first.labelled()[ours] & second.labelled()[theirs]
    if not known.any():
        raise VitreousError(f"{first.where} {first.split}: no image has a label for both checkpoints to be compared by")
    return ours[known], theirs[known]


def compare_predictions(first: Predictions, second: Predictions) -> PairedComparison:
    ours, theirs = shared_rows(first, second)
    return paired_comparison(first.right()[ours], second.right()[theirs])


def _reach(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))


def _format_p(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else f"{p:.0e}"
