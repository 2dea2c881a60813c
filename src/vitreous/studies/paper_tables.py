"""The numbers that the paper published, from the CSV files in `paper/`, whose README explains the columns."""

from __future__ import annotations

import csv
import functools
import math
from dataclasses import dataclass
from importlib import resources
from typing import Any

from vitreous.core.errors import unknown_name

TABLES = (
    *("table2", "table5", "table6", "table7", "table8", "table9"),
    *("figure8", "figure9", "figure13", "self_supervision"),
)
_NUMBERS = ("value", "std", "low", "high", "epochs")


@dataclass(frozen=True)
class PaperValue:
    """One published number and what it is of."""

    metric: str
    value: float = math.nan  # where only bounds are known
    std: float | None = None
    low: float | None = None
    high: float | None = None
    model: str = ""
    pretraining: str = ""
    epochs: float | None = None
    setting: str = ""
    task: str = ""
    note: str = ""


@functools.cache
def read_table(name: str) -> tuple[PaperValue, ...]:
    """The rows of one of `TABLES`, in the paper's order.

    >>> [row.value for row in read_table("table6") if row.metric == "exaFLOPs" and row.model == "ViT-B/16"]
    [224.0]
    """
    if name not in TABLES:
        raise unknown_name("table of the paper", name, TABLES)
    text = (resources.files("vitreous.studies") / "paper" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(_parse_row(row) for row in csv.DictReader(text.splitlines()))


def _parse_row(row: dict[str, str]) -> PaperValue:
    # An empty cell keeps its default.
    given: dict[str, Any] = {key: float(text) if key in _NUMBERS else text for key, text in row.items() if text}
    return PaperValue(**given)
