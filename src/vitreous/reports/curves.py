"""Curves for a page: inline SVG that reads without a script, with the numbers along for the script that shows them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.reports.html import text

POINTS = 1000  # of one curve; of more, the lowest and the highest of each of 500 stretches, so that no spike is lost
NOISY = 60  # points from which a running mean is drawn over a training curve

Floats = NDArray[np.float64]

_WIDTH, _HEIGHT = 440, 250  # small, so that the words stay legible on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 432, 10, 216


@dataclass(frozen=True, eq=False)
class Curve:
    name: str
    steps: Floats
    values: Floats
    """NaN where there is nothing to draw: the curve has a gap there."""
    colour: int = 0
    dashed: bool = False
    smoothed: bool = False


def number(value: object) -> float:
    """A JSON value as a number; NaN for null, text, what else is none, and what no axis could hold."""
    drawable = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e300
    return float(value) if drawable else math.nan  # type: ignore[arg-type]


def read_series(history: Sequence[Mapping[str, Any]], key: str, split: str | None = None) -> tuple[Floats, Floats]:
    """Steps and values of a quantity, in order. A step that was recorded twice, before and after a resume, counts once."""
    found: dict[float, float] = {}
    for record in history:
        step = number(record.get("step"))
        if key in record and math.isfinite(step) and (split is None or record.get("split") == split):
            found[step] = number(record[key])
    steps = np.array(sorted(found), dtype=np.float64)
    return steps, np.array([found[step] for step in steps], dtype=np.float64)


def thin(steps: Floats, values: Floats, most: int = POINTS) -> tuple[Floats, Floats]:
    """At most so many points: the extremes of equal stretches, the first and the last."""
    if len(steps) <= most:
        return steps, values
    kept = {0, len(steps) - 1}
    for stretch in np.array_split(np.arange(1, len(steps) - 1), most // 2 - 1):
        finite = stretch[np.isfinite(values[stretch])]
        if len(finite):
            kept |= {int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])}
        else:
            kept.add(int(stretch[0]))  # the gap stays a gap
    chosen = np.array(sorted(kept))
    return steps[chosen], values[chosen]


def running_mean(values: Floats, reach: int) -> Floats:
    """The mean of the finite ones up to `reach` to either side; NaN where there are none."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    at = np.arange(len(values))
    low, high = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(values))
    number_of = counts[high] - counts[low]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(number_of > 0, (sums[high] - sums[low]) / number_of, np.nan)


def chart(title: str, curves: Sequence[Curve], *, along: str = "step", logarithmic: bool = False, percent: bool = False) -> str:
    """One figure; nothing if no curve has a finite value. `logarithmic` holds where all values are above zero.

    `along` names what lies along the horizontal axis.
    """
    finite = np.concatenate([curve.values[np.isfinite(curve.values)] for curve in curves] or [np.empty(0)])
    if not len(finite):
        return ""
    last = max(float(curve.steps[-1]) for curve in curves if len(curve.steps))
    first = min(float(curve.steps[0]) for curve in curves if len(curve.steps))
    first = 0.0 if first < last / 4 else first
    across = _Axis(first, last if last > first else first + 1, False)
    logarithmic = logarithmic and float(finite.min()) > 0 and float(finite.max()) / 30 > float(finite.min())
    up = _value_axis(finite, logarithmic, percent)
    parts = [*_frame(across, up, percent, along)]
    data = []
    for curve in curves:
        steps, values = thin(curve.steps, curve.values)
        noisy = curve.smoothed and len(curve.values) >= NOISY
        style = f"curve c{curve.colour % 4}" + (" dashed" if curve.dashed else "")
        parts.append(_line(steps, values, across, up, style + (" faint" if noisy else "")))
        if noisy:
            mean = running_mean(curve.values, max(2, len(curve.values) // 60))
            parts.append(_line(*thin(curve.steps, mean), across, up, style))
        points = [[_short(s), _short(v)] for s, v in zip(steps.tolist(), values.tolist(), strict=True) if math.isfinite(v)]
        data.append({"name": curve.name, "colour": curve.colour % 4, "points": points})
    scale = dict(along=along, x=[across.low, across.high], y=[up.low, up.high], log=up.logarithmic, percent=percent)
    box = dict(left=_LEFT, right=_RIGHT, top=_TOP, bottom=_BOTTOM)
    carried = text(json.dumps({**scale, **box, "series": data}, separators=(",", ":")))
    legend = " ".join(
        f'<span class="key{" dashed" if curve.dashed else ""}"><i class="s{curve.colour % 4}"></i>{text(curve.name)}</span>'
        for curve in curves
        if np.isfinite(curve.values).any() and curve.name != title
    )
    drawn = "".join(parts)
    scaled = ' <span class="quiet">(logarithmic)</span>' if up.logarithmic else ""
    return (
        f'<figure class="chart"><figcaption><strong>{text(title)}</strong>{scaled} {legend}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(_told(title, curves, percent, along))}" '
        f'data-chart="{carried}">{drawn}</svg></figure>'
    )


# Pieces -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    logarithmic: bool

    def share(self, value: float) -> float:
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


def _value_axis(finite: Floats, logarithmic: bool, percent: bool) -> _Axis:
    low, high = float(finite.min()), float(finite.max())
    if logarithmic:
        return _Axis(low / 1.15, high * 1.15, True)
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = (low if low == 0 else low - room), high + room
    if percent and finite.min() >= 0 and finite.max() <= 1:
        low, high = max(low, 0.0), min(high, 1.0)
    return _Axis(low, high, False) if high > low else _Axis(low - room, low + room, False)


def _x(step: float, axis: _Axis) -> float:
    return _LEFT + (_RIGHT - _LEFT) * axis.share(step)


def _y(value: float, axis: _Axis) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * axis.share(value)


def _frame(across: _Axis, up: _Axis, percent: bool, along: str) -> list[str]:
    parts = []
    for tick in up.ticks():
        y = _y(tick, up)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(tick, percent)}</text>')
    ticks = [tick for tick in across.ticks() if along != "step" or tick == round(tick)]
    for tick in ticks:
        x = _x(tick, across)
        anchor = "end" if x > _RIGHT - 20 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{_BOTTOM + 16}" text-anchor="{anchor}">{_tick(tick)}</text>')
    parts.append(f'<line class="base" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>')
    parts.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 31}" text-anchor="middle">{text(along)}</text>')
    return parts


def _line(steps: Floats, values: Floats, across: _Axis, up: _Axis, style: str) -> str:
    path, alone, pen = [], [], False
    finite = np.isfinite(values)
    for k, (step, value) in enumerate(zip(steps.tolist(), values.tolist(), strict=True)):
        if not finite[k]:
            pen = False
            continue
        x, y = f"{_x(step, across):.1f}", f"{_y(value, up):.1f}"
        path.append(f"{'L' if pen else 'M'}{x} {y}")
        if not pen and (k + 1 == len(steps) or not finite[k + 1]):  # a line of one point would not be seen
            alone.append(f'<circle class="{style}" cx="{x}" cy="{y}" r="3"/>')
        pen = True
    return f'<path class="{style}" d="{"".join(path)}"/>' + "".join(alone)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def _label(value: float, percent: bool) -> str:
    if percent:
        return f"{round(100 * value, 6):g} %"
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    short = f"{value:.3g}"
    if 0 < abs(value) < 1e-3 or "e" in short:  # 0.00025 is wider than the margin
        digits, _, power = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{float(short):g}"


def _told(title: str, curves: Sequence[Curve], percent: bool, along: str) -> str:
    said = []
    for curve in curves:
        finite = np.flatnonzero(np.isfinite(curve.values))
        if len(finite):
            begin, end = (_label(float(curve.values[finite[k]]), percent) for k in (0, -1))
            said.append(f"{curve.name} from {begin} to {end}")
    return f"{title} by {along}: {'; '.join(said)}"


def _short(value: float) -> float | int:
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.5g}")
