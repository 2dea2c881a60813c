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

from vitreous.core.files import atomic_file
from vitreous.evaluation.fewshot import FewshotResult, Shots
from vitreous.evaluation.majority import beats_majority

WORTH = 0.005  # half a point for a doubling of the labels: less is hardly worth the labelling
_COLOURS = ("#2457a6", "#c0622d", "#1e7b34", "#8a3f9b", "#a4791f", "#0f7c84", "#b03a5b", "#5a5f66")  # told apart by all eyes
_MOST_NAMED = 8


@dataclass(frozen=True)
class Point:
    """All seeds of one number of shots."""

    data: str
    shots: Shots
    per_class: float
    accuracy: float  # mean over the seeds
    spread: float | None  # standard deviation over them, where there are several
    low: float
    high: float
    majority: float  # accuracy of always predicting the most frequent class
    fitted: float
    left_out: float
    l2: tuple[float, ...]  # those of the seeds, in their order
    n_train: int
    n_test: int
    seeds: int


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
    names = list(dict.fromkeys(found.data for found in rounds))
    return tuple(
        _point([found for found in rounds if found.data == name and found.shots == shots])
        for name in names
        for shots in sorted({found.shots for found in rounds if found.data == name}, key=_size)
    )


def _size(shots: Shots) -> float:
    return math.inf if shots == "all" else shots


def _point(own: Sequence[FewshotResult]) -> Point:
    accuracies = np.array([found.accuracy for found in own])
    return Point(
        data=own[0].data,
        shots=own[0].shots,
        per_class=float(np.mean([found.per_class for found in own])),
        accuracy=float(accuracies.mean()),
        spread=float(accuracies.std(ddof=1)) if len(own) > 1 else None,
        low=float(accuracies.min()),
        high=float(accuracies.max()),
        majority=own[0].majority,
        fitted=float(np.mean([found.fitted for found in own])),
        left_out=float(np.mean([found.left_out for found in own])),
        l2=tuple(found.l2 for found in own),
        n_train=own[0].n_train,
        n_test=own[0].n_test,
        seeds=len(own),
    )


# What follows ----------------------------------------------------------------------------------------------------------


def verdicts(rounds: Sequence[FewshotResult]) -> tuple[Verdict, ...]:
    return tuple(_verdict([r for r in rounds if r.data == name]) for name in dict.fromkeys(r.data for r in rounds))


def _verdict(own: Sequence[FewshotResult]) -> Verdict:
    curve, name = points(own), own[0].data
    last = curve[-1]
    if len(curve) < 2 or last.per_class <= curve[-2].per_class:
        return Verdict(name, None, None, None, f"{name}: one number of shots is no curve; give several to see what labels add")
    halves = [point for point in curve[:-1] if 2 * point.per_class <= last.per_class]
    gain, error, drawings = _gain(
        own, halves[-1] if halves else curve[0], last
    )  # over a short step, noise is divided by little
    room = last.fitted - last.left_out
    more: bool | None
    if not beats_majority(last.accuracy, last.majority):
        more, meaning = None, "no better than always predicting the largest class: check the checkpoint and the labels"
    elif last.accuracy > 1 - WORTH:
        more, meaning = False, "there is hardly anything left to gain"
    elif room < 2 * WORTH or gain + 2 * error < 2 * WORTH:
        more = False
        meaning = "more labels would hardly help. The features are the limit: fine-tune, or take a better checkpoint"
    elif gain - 2 * error > WORTH:
        more, meaning = True, "more labels would help"
    else:
        more = None
        meaning = (
            f"whether more would help, {last.n_test:,} test images and {drawings} drawing{'s' * (drawings > 1)} cannot tell"
        )
    added = f"a doubling of the labels, at {_few(last.per_class)} a class, adds {100 * gain:+.1f} ± {100 * error:.1f} points"
    ends = f"{last.fitted:.1%} of the training images are right, {last.left_out:.1%} of them if each is left out of its fit"
    return Verdict(name, gain, error, more, f"{name}: {added}: {meaning} ({ends})")


def _gain(own: Sequence[FewshotResult], before: Point, last: Point) -> tuple[float, float, int]:
    """Accuracy for each doubling, its standard error from test images and drawings, and the number of drawings.

    Both ends are evaluated on the same images, so images that both get right or wrong add nothing to the uncertainty.
    """
    doublings = math.log2(last.per_class / before.per_class)
    early = [found for found in own if found.shots == before.shots]
    late = [found for found in own if found.shots == last.shots]
    if len(late) == len(early):
        each = np.array([b.right.astype(float) - a.right for a, b in zip(early, late, strict=True)])
    else:  # `all` is one, whatever the seed
        each = np.array([late[0].right.astype(float) - a.right for a in early])
    by_image, by_seed = each.mean(axis=0), each.mean(axis=1)
    variance = by_image.var(ddof=1) / len(by_image) if len(by_image) > 1 else 0.25
    if len(by_seed) > 1:
        variance += by_seed.var(ddof=1) / len(by_seed)
    return float(by_image.mean()) / doublings, math.sqrt(variance) / doublings, len(by_seed)


def _few(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


# The figure -----------------------------------------------------------------------------------------------------------


def draw_curve(rounds: Sequence[FewshotResult], title: str, folder: Path) -> tuple[Path, ...]:
    """`learning_curve.png` and `.svg`: mean over the seeds, every seed a dot, and the band between the best and the worst."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    curve = points(rounds)
    names = list(dict.fromkeys(point.data for point in curve))
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(names):
        own, colour = [point for point in curve if point.data == name], _COLOURS[number % len(_COLOURS)]
        x = [point.per_class for point in own]
        y = [100 * point.accuracy for point in own]
        if len(names) == 1:
            fitted = [100 * point.fitted for point in own]
            axes.plot(x, fitted, color="#6b7178", lw=1.2, ls=(0, (4, 3)), label="its own training images")
            axes.axhline(100 * own[0].majority, color="#6b7178", lw=1, ls=(0, (1, 2)), label="largest class alone")
        if any(point.seeds > 1 for point in own):
            axes.fill_between(
                x, [100 * point.low for point in own], [100 * point.high for point in own], color=colour, alpha=0.16, lw=0
            )
        label = f"test images, mean of {max(point.seeds for point in own)} drawings" if len(names) == 1 else name
        axes.plot(x, y, color=colour, lw=2, marker="o", ms=5, label=label, zorder=3)
        for point in own:
            dots = [100 * found.accuracy for found in rounds if found.data == name and found.shots == point.shots]
            if len(dots) > 1:
                axes.scatter([point.per_class] * len(dots), dots, s=10, color=colour, alpha=0.55, lw=0, zorder=2)
    if len(names) == 1:
        for point in curve:
            axes.annotate(
                f"{100 * point.accuracy:.1f}", (point.per_class, 100 * point.accuracy), (9, -12), textcoords="offset points",
                ha="left", fontsize=8.5, color=_COLOURS[0],
            )  # fmt: skip
    ticks = sorted({point.per_class for point in curve})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_apart(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    alls = {point.per_class for point in curve if point.shots == "all"}
    axes.xaxis.set_major_formatter(lambda value, _: f"all ({_few(value)})" if value in alls else _few(value))
    axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.45)
    axes.set_xlabel("labelled images of each class")
    axes.set_ylabel("accuracy in %")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
    low, high = axes.get_ylim()
    axes.set_ylim(max(-1.0, low - 0.06 * (high - low)), min(101.0, high))
    axes.legend(frameon=False, fontsize=9, loc="lower right", ncols=1 if len(names) <= _MOST_NAMED else 2)
    paths = tuple(folder / f"learning_curve.{kind}" for kind in ("png", "svg"))
    with mpl.rc_context({"svg.hashsalt": "vitreous", "svg.fonttype": "none"}):  # equal curves give equal files
        for path in paths:
            with atomic_file(path) as part:
                kind = path.suffix[1:]
                figure.savefig(part, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return paths


def _apart(ticks: Sequence[float]) -> list[float]:
    """Without those so near the next that their words would lie on each other; the first and the last stay."""
    kept = [ticks[-1]]
    for tick in reversed(ticks[:-1]):
        if kept[-1] / tick > (ticks[-1] / ticks[0]) ** 0.05:
            kept.append(tick)
    return kept[::-1]
