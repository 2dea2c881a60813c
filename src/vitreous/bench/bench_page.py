"""The result as a page of documentation: PAGE.md with its tables, PAGE.png with its chart."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from vitreous.bench.bench_result import HEADINGS, BenchResult, Row, format_row, format_speed
from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_file, write_text
from vitreous.core.output_dir import check_writable
from vitreous.inspection.figure_style import COLOURS, DPI, FAINT, QUIET, drawn, look

_INTRODUCTION = """\
# Benchmarks

Written by `vitreous bench --out`; `make bench` repeats it. Every contender is a process of its own with the same weights,
all take turns, and a figure is the median over rounds. "to best peer" is the median over rounds of the best peer's time in
the same precision to the row's: above 1 is faster. "to best torch" is the same to the best of timm, transformers and
torchvision in float32, for inference and latency. "of peak" is the share of this machine's float32 matrix-multiply peak,
measured in the same rounds. Peak memory is that of the whole process. Outputs are compared before anything is timed.
Absolute figures hold for this machine only; compare ratios.
"""


def check_page(page: Path) -> None:
    if page.suffix != ".md":
        raise VitreousError(f"--out {page}: must end in .md; the chart is written beside it")
    check_writable("--out", page)


def write_page(result: BenchResult, page: Path) -> None:
    chart = page.with_suffix(".png")
    page.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(chart) as part, look():
        draw_chart(result).savefig(part, format="png", dpi=DPI, facecolor="white")
    lines = [
        _INTRODUCTION,
        f"- machine: {result.machine}",
        f"- libraries: {result.libraries}",
        f"- command: `{result.command}`",
    ]
    lines += ["", f"![ratios to the best peer]({chart.name})"]
    for title, rows in result.groups():
        lines += ["", f"## {title[0].upper()}{title[1:]}", *_table(map(format_row, rows))]
    if result.notes:
        lines += ["", "## Notes", *(f"- {note}" for note in result.notes)]
    write_text(page, "\n".join(lines) + "\n")


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (HEADINGS, ("---",) * len(HEADINGS), *rows)]


@drawn
def draw_chart(result: BenchResult) -> Figure:
    """A bar for each contender: its throughput as a multiple of the best peer's. Ours have a colour."""
    groups = list(result.groups())
    count = sum(len(rows) + 1.4 for _, rows in groups)
    figure = Figure(figsize=(7.6, 0.7 + 0.2 * count), layout="constrained")
    axes = figure.subplots()
    places: list[float] = []
    labels: list[str] = []
    at = 0.0
    for title, rows in groups:
        axes.text(0, at, f"{title}", fontsize=8.5, color=QUIET, va="center")
        at += 1
        for row in rows:
            value = _relative(row, rows)
            axes.barh(at, value, 0.78, color=COLOURS[0] if row.ours else FAINT)
            axes.text(
                value,
                at,
                f" {value:.2f}   {format_speed(row.images_per_second)} images/s",
                fontsize=7.5,
                va="center",
                color=QUIET,
            )
            places.append(at)
            labels.append(row.engine if row.precision == "float32" else f"{row.engine}, {row.precision}")
            at += 1
        at += 0.4
    axes.axvline(1, color=QUIET, lw=0.8, ls=":")
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_ylim(at, -0.8)
    axes.set_xlim(0, 1.35 * max([1.0, *(_relative(row, rows) for _, rows in groups for row in rows)]))
    axes.set_xlabel("throughput, best peer in float32 = 1")
    return figure


def _relative(row: Row, rows: list[Row]) -> float:
    """To the best float32 peer of its group, or the best of all where there is no peer."""
    peers = [other.images_per_second for other in rows if not other.ours and other.precision == "float32"]
    return row.images_per_second / max(peers or [other.images_per_second for other in rows])
