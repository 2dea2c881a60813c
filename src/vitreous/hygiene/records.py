"""What is kept of every item: a record of fixed size and, where near duplicates are wanted, its fingerprint.

There is no Python object per item, so a million images are no burden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.hygiene.examine import Examination
from vitreous.hygiene.fingerprint import LENGTH, fingerprint

RECORD = np.dtype(
    [
        ("digest", "<u8", 2),
        ("problem", "S16"),
        ("odd", "?"),
        ("misnamed", "?"),
        ("format", "S10"),
        ("mode", "S8"),
        ("width", "<u4"),
        ("height", "<u4"),
        ("orientation", "u1"),
        ("frames", "<u2"),
        ("mean", "<f4", 3),
        ("deviation", "<f4", 3),
    ]
)

Row = tuple[tuple[Any, ...], NDArray[np.uint8] | None, str]
"""A record's values, the fingerprint, and what is wrong or odd."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What is kept of some items that were examined together."""

    records: NDArray[Any]
    prints: NDArray[np.uint8] | None
    texts: dict[int, str]

    def __len__(self) -> int:
        return len(self.records)


def row(found: Examination, near: bool) -> Row:
    prints = fingerprint(found.picture) if near and found.picture is not None else None
    record = (
        np.frombuffer(found.digest, "<u8"),
        found.problem.encode("ascii", "replace"),
        bool(found.odd),
        found.misnamed,
        found.format.encode("ascii", "replace"),
        found.mode.encode("ascii", "replace"),
        found.width,
        found.height,
        found.orientation,
        min(found.frames, 65535),
        found.mean,
        found.deviation,
    )
    return record, prints, found.why or found.odd


def packed(rows: Sequence[Row], near: bool) -> Rows:
    records = np.array([record for record, _, _ in rows], RECORD) if rows else np.zeros(0, RECORD)
    prints = np.zeros((len(rows), LENGTH), np.uint8) if near else None
    for number, (_, one, _) in enumerate(rows):
        if prints is not None and one is not None:
            prints[number] = one
    return Rows(records, prints, {number: text for number, (_, _, text) in enumerate(rows) if text})


class Table:
    """Arrays that grow: to the size foretold at once, and by half of it where nobody knew."""

    def __init__(self, expected: int, near: bool) -> None:
        self._count = 0
        self._records = np.zeros(max(expected, 1), RECORD)
        self._prints = np.zeros((max(expected, 1), LENGTH), np.uint8) if near else None
        self._texts: dict[int, str] = {}

    def add(self, rows: Rows) -> None:
        end = self._count + len(rows)
        if end > len(self._records):
            size = max(end, len(self._records) * 3 // 2)
            self._records = np.resize(self._records, size)
            if self._prints is not None:
                self._prints = np.resize(self._prints, (size, LENGTH))
        self._records[self._count : end] = rows.records
        if self._prints is not None and rows.prints is not None:
            self._prints[self._count : end] = rows.prints
        self._texts.update({self._count + number: text for number, text in rows.texts.items()})
        self._count = end

    def finished(self) -> Rows:
        prints = self._prints[: self._count] if self._prints is not None else None
        return Rows(self._records[: self._count], prints, self._texts)
