"""Rows of a benchmark: one for each contender, with its ratio to the best peer in the same rounds."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.bench.race import Turns
from vitreous.core.table import table

OURS = "vitreous"
TORCH = ("timm", "transformers", "torchvision")  # peers that run in torch, eagerly or compiled
FORWARD = ("inference", "latency")


@dataclass(frozen=True)
class Row:
    what: str
    model: str
    engine: str
    precision: str
    batch: int
    images_per_second: float
    spread: tuple[float, float]
    """Quartiles of images per second over the rounds."""
    ratio_to_best_peer: float | None
    """Median over rounds of the best peer's time in the same precision to this one's; None where there is no peer."""
    ratio_to_best_torch: float | None
    """The same to the best peer that computes in torch, in float32; None where none does."""
    share_of_peak: float | None
    """Of the float32 matrix-multiply peak of the same rounds; None for what is not arithmetic."""
    peak_memory: int
    difference: float | None
    """Of the logits to vitreous' float32 ones: norm of the difference by the norm."""

    @property
    def ours(self) -> bool:
        return self.engine.split()[0] == OURS


@dataclass(frozen=True)
class BenchResult:
    rows: tuple[Row, ...]
    machine: str
    libraries: str
    command: str
    notes: tuple[str, ...] = ()
    wrong: bool = False
    """A contender's outputs differ from ours: it was not timed."""

    @property
    def exit_code(self) -> int:
        return int(self.wrong)

    def records(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            yield {**vars(row), "spread": list(row.spread)}

    def text(self) -> str:
        parts = [table(HEADINGS, map(format_row, rows), title=title) for title, rows in self.groups()]
        return "\n\n".join([f"{self.machine}; {self.libraries}", *parts])

    def groups(self) -> Iterable[tuple[str, list[Row]]]:
        """Rows that were measured side by side, with a title."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(f"{row.what}, {row.model}, batch {row.batch}", []).append(row)
        return found.items()


HEADINGS = ("engine", "precision", "images/s", "quartiles", "to best peer", "to best torch", "of peak", "peak MB")


def format_speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_row(row: Row) -> tuple[str, ...]:
    low, high = map(format_speed, row.spread)
    shares = (row.ratio_to_best_peer, row.ratio_to_best_torch, row.share_of_peak)
    return (row.engine, row.precision, format_speed(row.images_per_second), f"{low} to {high}",
            *("-" if share is None else f"{share:.2f}" for share in shares), f"{row.peak_memory / 1e6:,.0f}")  # fmt: skip


def make_rows(
    turns: Sequence[Turns], model: str, flops: float | None, peak: float | None, differences: dict[str, float]
) -> list[Row]:
    """Rows of one race. `flops` are those of one image, `peak` the machine's in a second."""
    peers = [each for each in turns if each.work.library != OURS]
    best = {precision: _fastest(peers, precision) for precision in {each.work.precision for each in turns}}
    in_torch = _fastest([peer for peer in peers if peer.work.library in TORCH and peer.work.what in FORWARD], "float32")
    rows = []
    for each in turns:
        work = each.work
        speeds = [work.batch / seconds for seconds in each.seconds]
        speed = statistics.median(speeds)
        rows.append(
            Row(
                what=work.what,
                model=model,
                engine=work.engine,
                precision=work.precision,
                batch=work.batch,
                images_per_second=speed,
                spread=_quartiles(speeds),
                ratio_to_best_peer=_ratio(best[work.precision], each),
                ratio_to_best_torch=_ratio(in_torch, each),
                share_of_peak=speed * flops / peak if flops and peak else None,
                peak_memory=each.peak_memory,
                difference=differences.get(f"{work.engine} {work.precision}"),
            )
        )
    return rows


def _fastest(turns: Sequence[Turns], precision: str) -> Turns | None:
    candidates = [each for each in turns if each.work.precision == precision]
    return min(candidates, key=lambda each: statistics.median(each.seconds), default=None)


def _ratio(peer: Turns | None, own: Turns) -> float | None:
    """Round by round: a slow moment of the machine weighs on both."""
    return statistics.median(map(operator.truediv, peer.seconds, own.seconds)) if peer else None


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
