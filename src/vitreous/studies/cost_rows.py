"""The rows of the cost study and their file, runs.csv."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.fields import check_fields, field_types
from vitreous.core.files import atomic_file
from vitreous.core.table import table


@dataclass(frozen=True)
class CostRow:
    """One model at one image size: a line of runs.csv."""

    arm: str  # the model
    seed: int
    family: str
    image_size: int
    device: str
    precision: str
    threads: int
    parameters: int
    macs: int  # of one image
    batch: int  # the fastest
    images_per_second: float  # median over rounds
    images_per_second_low: float  # of the slowest round
    images_per_second_high: float
    rounds: int
    largest_batch: int  # 0: not even one image fits
    largest_batch_by: str  # "trying" or "estimate"
    memory_bytes: int  # that the batch was to fit into
    flops: int  # of one image
    seconds: float  # that measuring took

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"{name}={value}:")


@dataclass(frozen=True)
class CostResult:
    """What was measured, for people and programs."""

    out: str
    rows: tuple[CostRow, ...]
    notes: tuple[str, ...] = ()
    exit_code: int = 0

    def text(self) -> str:
        headings = ("model", "image size", "images/s", "slowest to fastest round", "batch", "largest batch that fits")
        lines = [
            (
                row.arm,
                row.image_size,
                f"{row.images_per_second:,.1f}",
                f"{row.images_per_second_low:,.1f} to {row.images_per_second_high:,.1f}",
                row.batch,
                row.largest_batch,
            )
            for row in self.rows
        ]
        return f"{table(headings, lines)}\n\n{self.out}/figure.png shows it; runs.csv has the numbers"

    def records(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(row) for row in self.rows]


def read_rows(path: Path) -> list[CostRow]:
    """The rows of a runs.csv; none where there is no such file."""
    if not path.exists():
        return []
    kinds = field_types(CostRow)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [CostRow(**{name: kinds[name](cell) for name, cell in line.items()}) for line in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError, VitreousError) as error:
        raise VitreousError(f"{path}: is no table of the cost study ({one_line(error)}); choose another --out") from error


def write_rows(path: Path, rows: Sequence[CostRow]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(CostRow)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)
