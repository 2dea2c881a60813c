"""The table: tasks by group with their means, beside the paper's Table 9; for a terminal and for a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from vitreous.core.table import table
from vitreous.studies.suite_summary import Mean, Summary


class _Row(NamedTuple):
    kind: Literal["task", "group", "mean"]
    cells: tuple[str, ...]


def plain(summary: Summary) -> str:
    """Columns of text."""
    lines: list[tuple[str, ...]] = []
    for row in _rows(summary):
        lines.append(row.cells)
        lines += [("",) * len(row.cells)] if row.kind == "group" else []
    drawn = table(_headings(summary), lines, dense=True).strip("\n")
    return "\n\n".join([title(summary), drawn, *(["\n".join(legend)] if (legend := [*_legend(summary)]) else [])])


def markdown(summary: Summary) -> str:
    headings = _headings(summary)
    drawn = [f"# {_escaped(title(summary))}", "", _cells(headings), _cells(("---", *["---:"] * (len(headings) - 1)))]
    drawn += [
        _cells(tuple(f"**{cell.strip()}**" if cell.strip() and row.kind != "task" else cell.strip() for cell in row.cells))
        for row in _rows(summary)
    ]
    return "\n".join([*drawn, "", *(f"{_escaped(line)}\n" for line in _legend(summary))])


def title(summary: Summary) -> str:
    return f"{summary.suite.name}, {summary.checkpoint}, {summary.method}: accuracy on test images in %"


def _headings(summary: Summary) -> tuple[str, ...]:
    spread = () if math.isnan(summary.mean.spread) else ("±",)
    return ("task", "accuracy", *spread, *(("majority",) if _rated(summary) else ()), *summary.suite.paper)


def _rated(summary: Summary) -> bool:
    """Results of before may not tell the majority-class rate."""
    return any(score.mean.majority is not None for score in summary.tasks)


def _rows(summary: Summary) -> Iterator[_Row]:
    several = len(summary.groups) > 1
    for group, mean in summary.groups.items():
        own = [score for score in summary.tasks if score.task.group == group]
        for score in own:
            yield _Row("task", (score.task.shown, *_figures(score.mean, summary)))
        if several:
            yield _Row("group", (f"{group}, mean of {len(own)}", *_figures(mean, summary)))
    yield _Row("mean", (summary.counted, *_figures(summary.mean, summary)))


def _figures(mean: Mean, summary: Summary) -> tuple[str, ...]:
    spread = () if math.isnan(summary.mean.spread) else (f"{100 * mean.spread:.2f}",)
    paper = tuple(f"{figure:.1f}" for figure in mean.paper) or ("",) * len(summary.suite.paper)
    rate = ("" if mean.majority is None else f"{100 * mean.majority:.2f}",) if _rated(summary) else ()
    return (f"{100 * mean.value:.2f}", *spread, *rate, *paper)


def _legend(summary: Summary) -> Iterator[str]:
    if not math.isnan(summary.mean.spread):
        yield f"±: standard deviation over seeds {', '.join(map(str, summary.seeds))}; of a mean, from seed to seed"
    if _rated(summary):
        yield "majority: what always predicting the largest class of the training images would get"
    if summary.suite.paper:
        yield "the paper's columns: its Table 9, means over the same tasks"
    if departures := summary.departures():
        yield f"not the paper's protocol: {'; '.join(departures)}"


def _cells(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(_escaped(cell) if not cell.startswith('--') else cell for cell in cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
