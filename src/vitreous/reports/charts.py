"""Charts of the reports as SVG: the scales are computed here, `templates/charts.html` draws."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitreous.reports.render import environment
from vitreous.reports.series import Floats, running_mean, thin

NOISY = 60
"""Points from which a running mean is drawn over a training curve."""
SIZES = 2000
"""Image sizes drawn; of more, an even sample with the extremes."""


@dataclass(frozen=True)
class Box:
    """The area inside the axes, in the SVG's units."""

    left: int
    right: int
    top: int
    bottom: int

    def x(self, share: float) -> float:
        return self.left + (self.right - self.left) * share

    def y(self, share: float) -> float:
        return self.bottom - (self.bottom - self.top) * share


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.logarithmic:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            digits = (1, 2, 5) if len(powers) < 5 else (1,)
            every = [digit * 10.0**power for power in powers for digit in digits]
            inside = [tick for tick in every if self.low <= tick <= self.high]
            return inside[:: math.ceil(len(inside) / 8)] if inside else []
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= rough * 0.999)
        begin = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(begin, math.floor(self.high / step + 1e-9) + 1)]


# Curves -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Curve:
    name: str
    steps: Floats
    values: Floats
    """NaN where there is nothing to draw: the curve has a gap there."""
    colour: int = 0
    dashed: bool = False
    smoothed: bool = False

    @property
    def finite(self) -> Floats:
        return self.values[np.isfinite(self.values)]


# Small, so that the text stays legible on a phone.
_CURVES = Box(left=56, right=432, top=10, bottom=216)


def line_chart(
    title: str, curves: Sequence[Curve], *, along: str = "step", logarithmic: bool = False, percent: bool = False
) -> Markup | None:
    """None if no curve has a finite value. `logarithmic` holds where all values are above zero and span a factor of 30.

    `along` names what lies along the horizontal axis.
    """
    finite = np.concatenate([curve.finite for curve in curves] or [np.empty(0)])
    if not len(finite):
        return None
    last = max(float(curve.steps[-1]) for curve in curves if len(curve.steps))
    first = min(float(curve.steps[0]) for curve in curves if len(curve.steps))
    first = 0.0 if first < last / 4 else first
    across = Axis(first, last if last > first else first + 1)
    up = _value_axis(finite, logarithmic, percent)
    lines, series = [], []
    for curve in curves:
        steps, values = thin(curve.steps, curve.values)
        noisy = curve.smoothed and len(curve.values) >= NOISY
        style = f"curve c{curve.colour % 4}" + (" dashed" if curve.dashed else "")
        lines.append(_line(steps, values, across, up, style + (" faint" if noisy else "")))
        if noisy:
            mean = running_mean(curve.values, max(2, len(curve.values) // 60))
            lines.append(_line(*thin(curve.steps, mean), across, up, style))
        points = [[_short(s), _short(v)] for s, v in zip(steps.tolist(), values.tolist(), strict=True) if math.isfinite(v)]
        series.append({"name": curve.name, "colour": curve.colour % 4, "points": points})
    scale = dict(along=along, x=[across.low, across.high], y=[up.low, up.high], log=up.logarithmic, percent=percent)
    ends = [f"{c.name} from {_label(c.finite[0], percent)} to {_label(c.finite[-1], percent)}" for c in curves if len(c.finite)]
    # There is no half of a step.
    steps_shown = [tick for tick in across.ticks() if along != "step" or tick == round(tick)]
    return _draw(
        "line_chart",
        title=title,
        label=f"{title} by {along}: {'; '.join(ends)}",
        along=along,
        box=_CURVES,
        x_ticks=[(_CURVES.x(across.share(t)), f"{t:,.0f}" if t == round(t) else f"{t:.4g}") for t in steps_shown],
        y_ticks=[(_CURVES.y(up.share(tick)), _label(tick, percent)) for tick in up.ticks()],
        lines=lines,
        keys=[curve for curve in curves if len(curve.finite) and curve.name != title],
        logarithmic=up.logarithmic,
        data=json.dumps({**scale, **vars(_CURVES), "series": series}, separators=(",", ":")),
    )


def _draw(macro: str, **context: Any) -> Markup:
    drawn: Markup = getattr(environment().get_template("charts.html").module, macro)(**context)
    return drawn


def _value_axis(finite: Floats, logarithmic: bool, percent: bool) -> Axis:
    low, high = float(finite.min()), float(finite.max())
    if logarithmic and low > 0 and high / 30 > low:
        return Axis(low / 1.15, high * 1.15, logarithmic=True)
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = (low if low == 0 else low - room), high + room
    if percent and finite.min() >= 0 and finite.max() <= 1:
        low, high = max(low, 0.0), min(high, 1.0)
    return Axis(low, high) if high > low else Axis(low - room, low + room)


def _line(steps: Floats, values: Floats, across: Axis, up: Axis, style: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Its style, its path, and points with a gap on either side, which a line would not show."""
    path, alone, pen = [], [], False
    finite = np.isfinite(values)
    for k, (step, value) in enumerate(zip(steps.tolist(), values.tolist(), strict=True)):
        if not finite[k]:
            pen = False
            continue
        x, y = f"{_CURVES.x(across.share(step)):.1f}", f"{_CURVES.y(up.share(value)):.1f}"
        path.append(f"{'L' if pen else 'M'}{x} {y}")
        if not pen and (k + 1 == len(steps) or not finite[k + 1]):
            alone.append((x, y))
        pen = True
    return style, "".join(path), alone


def _label(value: float, percent: bool) -> str:
    if percent:
        return f"{round(100 * value, 6):g} %"
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    short = f"{value:.3g}"
    # 0.00025 is wider than the margin.
    if 0 < abs(value) < 1e-3 or "e" in short:
        digits, _, power = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{float(short):g}"


def _short(value: float) -> float | int:
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.5g}")


# Image sizes ------------------------------------------------------------------------------------------------------------------


_SIZES = Box(left=52, right=612, top=16, bottom=336)


def size_chart(width: NDArray[np.int64], height: NDArray[np.int64], target: tuple[int, int] | None) -> Markup:
    """Width against height, both on logarithmic scales. `target` is a height and a width."""
    chosen = np.unique(np.linspace(0, len(width) - 1, min(SIZES, len(width))).astype(np.int64))
    extremes = [int(f(v)) for v in (width, height) for f in (np.argmin, np.argmax)]
    chosen = np.unique(np.concatenate([chosen, extremes]))
    sizes, numbers = np.unique(np.stack([width[chosen], height[chosen]]), axis=1, return_counts=True)
    sides = [*sizes.ravel().tolist(), *(target or ())]
    axis = Axis(min(sides) / 1.25, max(sides) * 1.25, logarithmic=True)
    steps = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
    ticks = [step for step in steps if axis.low <= step <= axis.high] or [round(math.sqrt(axis.low * axis.high))]

    def x(value: float) -> float:
        return _SIZES.x(axis.share(value))

    def y(value: float) -> float:
        return _SIZES.y(axis.share(value))

    return _draw(
        "size_chart",
        label=f"Width from {width.min():,} to {width.max():,} pixels, height from {height.min():,} to {height.max():,}.",
        box=_SIZES,
        x_ticks=[(x(tick), f"{tick:,}") for tick in ticks],
        y_ticks=[(y(tick), f"{tick:,}") for tick in ticks],
        points=[
            (x(wide), y(tall), min(9.0, 2.2 + 0.7 * math.log2(number)))
            for wide, tall, number in zip(*sizes.tolist(), numbers.tolist(), strict=True)
        ],
        target=(x(target[1]), y(target[0]), f"{target[1]} × {target[0]}") if target else None,
    )


# Calibration ------------------------------------------------------------------------------------------------------------------


_ACCURACY, _COUNTS = Box(left=56, right=432, top=10, bottom=190), Box(left=56, right=432, top=200, bottom=236)


def reliability_chart(bins: Sequence[Mapping[str, Any]]) -> Markup:
    """Bars of accuracy over confidence, each with its `interval`, and under them how many images each stands for."""
    quarters = [(share, f"{100 * share:.0f} %") for share in (0, 0.25, 0.5, 0.75, 1)]
    return _draw(
        "reliability_chart",
        bins=bins,
        most=max(row["n"] for row in bins),
        box=_ACCURACY,
        counts=_COUNTS,
        x_ticks=[(_ACCURACY.x(share), label) for share, label in quarters],
        y_ticks=[(_ACCURACY.y(share), label) for share, label in quarters],
    )
