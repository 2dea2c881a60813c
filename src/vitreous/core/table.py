"""Tables for people, drawn by rich; plain and unbroken where the output is not a terminal."""

from __future__ import annotations

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
    for index, heading in enumerate(headings):
        numeric = (all(isinstance(row[index], (int, float)) for row in rows) and bool(rows)) or (dense and index > 0)
        drawn.add_column(_cell(heading), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(_cell(value) for value in row))
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 200, color_system="auto" if terminal else None, highlight=False)
    with console.capture() as capture:
        console.print(drawn)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(
        lines if title is None else [printable(title), *lines]
    )  # rich would break a long title at the table's width


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
