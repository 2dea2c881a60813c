"""Drawings for the page, as HTML and inline SVG: bars for classes, a cloud of points for sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.reports.html import scrolled, text

BARS = 60  # classes drawn; of more, the largest and the smallest half of this number
POINTS = 2000  # sizes drawn; of more, an even sample, with the extremes


def class_bars(counts: Mapping[str, Mapping[str, int]]) -> str:
    """`counts` holds, for each split, the classes and their numbers of images."""
    splits = list(counts)
    totals = {name: sum(counts[split].get(name, 0) for split in splits) for name in counts[splits[0]]}
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    shown = ranked if len(ranked) <= BARS else [*ranked[: BARS // 2], *ranked[-BARS // 2 :]]
    longest = {split: max(1, *(counts[split].get(name, 0) for name in shown)) for split in splits}
    rows = []
    for number, name in enumerate(shown):
        if len(shown) < len(ranked) and number == BARS // 2:
            rows.append(
                f'<tr><td colspan="{len(splits) + 1}" class="quiet">… {len(ranked) - len(shown):,} more classes …</td></tr>'
            )
        cells = "".join(_bar(counts[split].get(name, 0), longest[split], i) for i, split in enumerate(splits))
        rows.append(f'<tr><th scope="row">{text(name)}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{text(split)}</th>' for split in splits)
    head = f'<thead><tr><th scope="col">class</th>{head}</tr></thead>'
    return scrolled("images of each class", f'<table class="bars">{head}<tbody>{"".join(rows)}</tbody></table>')


def _bar(count: int, longest: int, series: int) -> str:
    if not count:
        return '<td><span class="n none">0</span></td>'
    return (
        f'<td><span class="bar s{series % 4}" style="width:calc((100% - 3.5rem) * {count / longest:.3f})"></span>'
        f'<span class="n">{count:,}</span></td>'
    )


def size_cloud(width: NDArray[np.int64], height: NDArray[np.int64], target: tuple[int, int] | None) -> str:
    """Width against height, both on logarithmic scales, with the size that the preprocessing makes."""
    chosen = np.unique(np.linspace(0, len(width) - 1, min(POINTS, len(width))).astype(np.int64))
    extremes = [int(f(v)) for v in (width, height) for f in (np.argmin, np.argmax)]
    chosen = np.unique(np.concatenate([chosen, extremes]))
    sizes, numbers = np.unique(np.stack([width[chosen], height[chosen]]), axis=1, return_counts=True)
    sides = [*sizes.ravel().tolist(), *(target or ())]
    low, high = min(sides) / 1.25, max(sides) * 1.25
    ticks = _ticks(low, high)

    def x(value: float) -> float:
        return 52 + 560 * math.log(value / low) / math.log(high / low)

    def y(value: float) -> float:
        return 336 - 320 * math.log(value / low) / math.log(high / low)

    parts = ['<line class="diagonal" x1="52" y1="336" x2="612" y2="16"/>']
    for tick in ticks:
        parts.append(f'<line class="grid" x1="52" x2="612" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<line class="grid" y1="16" y2="336" x1="{x(tick):.1f}" x2="{x(tick):.1f}"/>')
        parts.append(f'<text x="46" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,}</text>')
        parts.append(f'<text x="{x(tick):.1f}" y="352" text-anchor="middle">{tick:,}</text>')
    if target:
        parts.append(f'<path class="target" d="M52 {y(target[0]):.1f}H{x(target[1]):.1f}V336"/>')
        parts.append(
            f'<text class="target" x="{x(target[1]):.1f}" y="{y(target[0]) - 5:.1f}" text-anchor="end">'
            f"{target[1]} × {target[0]}</text>"
        )
    for wide, tall, number in zip(*sizes.tolist(), numbers.tolist(), strict=True):
        radius = min(9.0, 2.2 + 0.7 * math.log2(number))
        parts.append(f'<circle cx="{x(wide):.1f}" cy="{y(tall):.1f}" r="{radius:.1f}"/>')
    parts.append('<text x="332" y="374" text-anchor="middle">width in pixels</text>')
    parts.append('<text transform="translate(12 176) rotate(-90)" text-anchor="middle">height in pixels</text>')
    said = f"Width from {width.min():,} to {width.max():,} pixels, height from {height.min():,} to {height.max():,}."
    return f'<svg class="cloud" viewBox="0 0 624 382" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def _ticks(low: float, high: float) -> Sequence[int]:
    steps = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
    inside = [step for step in steps if low <= step <= high]
    return inside or [round(math.sqrt(low * high))]
