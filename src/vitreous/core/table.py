"""Tables for people, drawn by rich; plain and unbroken where the output is not a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from vitreous.core.printable import printable


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None, dense: bool = False) -> str:
    """`dense`: many narrow columns, all but the first flush right and one space apart."""
    import sys

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    padding = (0, 0) if dense else (0, 1)
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, padding=padding)
    rows = [tuple(row) for row in rows]
    columns = [[row[index] for row in rows] for index in range(len(headings))]
    for index, (heading, values) in enumerate(zip(headings, columns, strict=True)):
        numeric = {type(value) for value in values} - {type(None)}
        right = (bool(numeric) and numeric <= {int, float, bool}) or (dense and index > 0)
        drawn.add_column(_cell(heading), justify="right" if right else "left", overflow="fold")
    for row in zip(*map(_cells, columns), strict=True):
        drawn.add_row(*row)
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 200, color_system="auto" if terminal else None, highlight=False)
    with console.capture() as capture:
        console.print(drawn)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(
        lines if title is None else [printable(title), *lines]
    )  # rich would break a long title at the table's width


def _cells(values: Sequence[Any]) -> list[str]:
    """A column's cells; its fractions have the same number of digits where they are of one order of magnitude."""
    sizes = [abs(value) for value in values if isinstance(value, float) and value and math.isfinite(value)]
    if not sizes or max(sizes) >= 1000 or min(sizes) < max(sizes) / 100:
        return [_cell(value) for value in values]
    needed = max(len(f"{size:.4g}".partition(".")[2]) for size in sizes)
    digits = min(needed, 3 - math.floor(math.log10(max(sizes))))
    return [f"{value:.{digits}f}" if isinstance(value, float) and math.isfinite(value) else _cell(value) for value in values]


def _cell(value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(printable(value))  # a file may be called a[/b].jpg
