"""The learning curve of few-shot accuracy, and whether more labels are worth it.

The slope at its end says what more labels add now. What they can add in all is bounded by the training images themselves: with
ever more labels, the accuracy on images that the classifier was fitted to sinks, the accuracy on images left out rises, and the
two meet. Where they have met, the features are the limit, and only other features help: fine-tuning, or a better checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from vitreous.evaluation.fewshot import FewshotResult
from vitreous.evaluation.majority import beats_majority
from vitreous.inspection.figure_style import COLOURS, QUIET, chart, drawn, legend_above, save

WORTH = 0.005  # half a point for a doubling of the labels: less is hardly worth the labelling
_MOST_NAMED = 8


@dataclass(frozen=True, eq=False)
class Point:
    """All seeds of one number of shots."""

    rounds: tuple[FewshotResult, ...]

    @property
    def first(self) -> FewshotResult:
        """For what does not depend on the seed."""
        return self.rounds[0]

    def each(self, name: str) -> NDArray[np.float64]:
        """A number of every round."""
        return np.array([getattr(found, name) for found in self.rounds], np.float64)

    def mean(self, name: str) -> float:
        return float(self.each(name).mean())

    @property
    def spread(self) -> float | None:
        """Standard deviation of the accuracy over the seeds, where there are several."""
        return float(self.each("accuracy").std(ddof=1)) if len(self.rounds) > 1 else None


@dataclass(frozen=True)
class Verdict:
    data: str
    gain: float | None  # accuracy that a doubling of the labels adds, at the end of the curve
    error: float | None  # its standard error
    more_labels: bool | None  # whether they would help; None: not to be told from these images
    sentence: str

    def record(self) -> dict[str, Any]:
        numbers = {"gain_per_doubling": self.gain, "standard_error": self.error, "more_labels": self.more_labels}
        return {"data": self.data, **numbers, "said": self.sentence}


def points(rounds: Sequence[FewshotResult]) -> tuple[Point, ...]:
    """In the order of the rounds: data set by data set, and for each from few shots to many."""
    names = {found.data: place for place, found in reversed([*enumerate(rounds)])}
    keys = {(found.data, found.shots) for found in rounds}
    order = sorted(keys, key=lambda key: (names[key[0]], math.inf if key[1] == "all" else key[1]))
    return tuple(Point(tuple(found for found in rounds if (found.data, found.shots) == key)) for key in order)


# What follows ----------------------------------------------------------------------------------------------------------


def verdicts(rounds: Sequence[FewshotResult]) -> tuple[Verdict, ...]:
    return tuple(_verdict([r for r in rounds if r.data == name]) for name in dict.fromkeys(r.data for r in rounds))


def _verdict(own: Sequence[FewshotResult]) -> Verdict:
    curve, name = points(own), own[0].data
    last, per_class = curve[-1], curve[-1].mean("per_class")
    if len(curve) < 2 or per_class <= curve[-2].mean("per_class"):
        return Verdict(name, None, None, None, f"{name}: one number of shots is no curve; give several to see what labels add")
    # Over a short step, noise is divided by little.
    halves = [point for point in curve[:-1] if 2 * point.mean("per_class") <= per_class]
    gain, error, seeds = _gain(halves[-1] if halves else curve[0], last)
    accuracy, fitted, left_out = (last.mean(name) for name in ("accuracy", "fitted", "left_out"))
    more: bool | None
    if not beats_majority(accuracy, last.first.majority):
        more, meaning = None, "no better than always predicting the largest class: check the checkpoint and the labels"
    elif accuracy > 1 - WORTH:
        more, meaning = False, "there is hardly anything left to gain"
    elif fitted - left_out < 2 * WORTH or gain + 2 * error < 2 * WORTH:
        more = False
        meaning = "more labels would hardly help. The features are the limit: fine-tune, or take a better checkpoint"
    elif gain - 2 * error > WORTH:
        more, meaning = True, "more labels would help"
    else:
        tested = f"{last.first.n_test:,} test images and {seeds} seed{'s' * (seeds > 1)}"
        more, meaning = None, f"undecided: {tested} are too few to tell whether more labels would help"
    added = f"a doubling of the labels, at {_few(per_class)} a class, adds {100 * gain:+.1f} ± {100 * error:.1f} points"
    ends = f"training accuracy {fitted:.1%}, leave-one-out {left_out:.1%}"
    return Verdict(name, gain, error, more, f"{name}: {added}: {meaning} ({ends})")


def _gain(before: Point, last: Point) -> tuple[float, float, int]:
    """Accuracy for each doubling, its standard error from test images and seeds, and the number of seeds.

    Both ends are evaluated on the same images, so images that both get right or wrong add nothing to the uncertainty.
    """
    doublings = math.log2(last.mean("per_class") / before.mean("per_class"))
    # `all` is one, whatever the seed.
    late = last.rounds if len(last.rounds) == len(before.rounds) else [last.first] * len(before.rounds)
    each = np.array([b.right.astype(float) - a.right for a, b in zip(before.rounds, late, strict=True)])
    by_image, by_seed = each.mean(axis=0), each.mean(axis=1)
    variance = by_image.var(ddof=1) / len(by_image) if len(by_image) > 1 else 0.25
    if len(by_seed) > 1:
        variance += by_seed.var(ddof=1) / len(by_seed)
    return float(by_image.mean()) / doublings, math.sqrt(variance) / doublings, len(by_seed)


def _few(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


# The figure -----------------------------------------------------------------------------------------------------------


def draw_curve(rounds: Sequence[FewshotResult], title: str, folder: Path) -> None:
    """`learning_curve.png` and `.svg`: mean over the seeds, every seed a dot, and the band between the best and the worst."""
    save(_figure(points(rounds), title), folder, "learning_curve")


@drawn
def _figure(curve: Sequence[Point], title: str) -> Figure:
    figure, axes = chart(title)
    names = list(dict.fromkeys(point.first.data for point in curve))
    one = len(names) == 1
    for number, name in enumerate(names):
        own, colour = [point for point in curve if point.first.data == name], COLOURS[number % len(COLOURS)]
        x = [point.mean("per_class") for point in own]
        accuracies = [100 * point.each("accuracy") for point in own]
        seeds = max(map(len, accuracies))
        if one:
            fitted, largest = [100 * point.mean("fitted") for point in own], 100 * own[0].first.majority
            axes.plot(x, fitted, color=QUIET, lw=1.2, ls=(0, (4, 3)), label="its own training images")
            axes.axhline(largest, color=QUIET, lw=1, ls=(0, (1, 2)), label="largest class alone")
        if seeds > 1:
            axes.fill_between(x, [*map(min, accuracies)], [*map(max, accuracies)], color=colour, alpha=0.16, lw=0)
        label = f"test images, mean of {seeds} seeds" if one else name
        means = [float(each.mean()) for each in accuracies]
        axes.plot(x, means, color=colour, lw=2, marker="o", ms=5, label=label, zorder=3)
        for place, mean, each in zip(x, means, accuracies, strict=True):
            if len(each) > 1:
                axes.scatter([place] * len(each), each, s=10, color=colour, alpha=0.55, lw=0, zorder=2)
            if one:
                axes.annotate(f"{mean:.1f}", (place, mean), (9, -12), textcoords="offset points", color=colour)
    ticks = sorted({point.mean("per_class") for point in curve})
    alls = {point.mean("per_class") for point in curve if point.first.shots == "all"}
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_apart(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"all ({_few(value)})" if value in alls else _few(value))
    axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.45)
    axes.set(xlabel="labelled images of each class", ylabel="accuracy in %")
    low, high = axes.get_ylim()
    axes.set_ylim(max(-1.0, low - 0.06 * (high - low)), min(101.0, high))
    if one:
        legend_above(axes)
    else:
        axes.legend(loc="lower right", ncols=1 if len(names) <= _MOST_NAMED else 2)
    return figure


def _apart(ticks: Sequence[float]) -> list[float]:
    """Without those so near the next that their words would lie on each other; the first and the last stay."""
    kept = [ticks[-1]]
    for tick in reversed(ticks[:-1]):
        if kept[-1] / tick > (ticks[-1] / ticks[0]) ** 0.05:
            kept.append(tick)
    return kept[::-1]
