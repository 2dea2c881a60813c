"""95 % confidence intervals of shares and means: Wilson and bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Method: TypeAlias = Literal["wilson", "bootstrap"]
SAMPLES = 2000  # the interval's ends are then sure to about a fortieth of its width
_ENTRIES = 1 << 22  # drawn numbers held at once


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of n: unlike the plain one, it stays within 0 and 1, also for small n."""
    if not n:
        return 0.0, 1.0
    z = 1.959963984540054
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def bootstrap(
    kinds: NDArray[np.int64],
    statistic: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile bootstrap's 95 % interval of any statistic of how many images there are of each kind.

    Images that the statistic cannot tell apart are of one kind. To resample n images, with replacement, is to draw the
    counts of the kinds from a multinomial distribution: the same thing, at a cost that does not grow with n. `statistic` gets
    rows of drawn counts (samples, kinds) and gives a number for each; one that is nan is left out.
    """
    n = int(kinds.sum())
    rng, shares = np.random.default_rng(seed), kinds.astype(np.float64) / n
    block = max(1, _ENTRIES // len(kinds))
    drawn = [
        np.asarray(statistic(rng.multinomial(n, shares, size=min(block, samples - start))), np.float64)
        for start in range(0, samples, block)
    ]
    low, high = np.nanquantile(np.concatenate(drawn), (0.025, 0.975))
    return float(low), float(high)


def share_interval(right: int, n: int, method: Method = "wilson", seed: int = 0) -> tuple[float, float]:
    """Of `right` out of n."""
    if method == "wilson" or not n:
        return wilson(right / n if n else 0.0, n)
    return bootstrap(np.array([right, n - right]), lambda drawn: drawn[:, 0] / n, seed=seed)


def mean_recall_interval(right: NDArray[np.int64], there: NDArray[np.int64], seed: int = 0) -> tuple[float, float]:
    """Of the mean over classes of right / there, for images with one label each: no formula knows it, the bootstrap does."""
    own = there > 0

    def mean(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        hits, misses = np.split(drawn, 2, axis=1)
        with np.errstate(invalid="ignore"):
            recalls: NDArray[np.float64] = np.nanmean(hits / (hits + misses), axis=1)  # a class may not have been drawn
        return recalls

    return bootstrap(np.concatenate([right[own], there[own] - right[own]]), mean, seed=seed)
