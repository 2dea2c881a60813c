"""Fixed-size records of scanned items, and their fingerprints where near duplicates are searched.

There is no Python object per item, so a million images are no burden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.doctor.examine import Examination
from vitreous.doctor.fingerprint import LENGTH, Fingerprints, compute_fingerprints

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

Row = tuple[tuple[Any, ...], list[NDArray[np.uint8]], str]
"""A record's values, the fingerprints, and what is wrong or odd."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What is kept of some items that were examined together."""

    records: NDArray[Any]
    prints: Fingerprints | None
    texts: dict[int, str]

    def __len__(self) -> int:
        return len(self.records)


def make_row(found: Examination, near: bool) -> Row:
    prints = compute_fingerprints(found.image) if near and found.image is not None else []
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


def pack_rows(rows: Sequence[Row], near: bool) -> Rows:
    records = np.array([record for record, _, _ in rows], RECORD) if rows else np.zeros(0, RECORD)
    prints = None
    if near:
        owners = [(number, one) for number, (_, several, _) in enumerate(rows) for one in several]
        lines = np.array([one for _, one in owners], np.uint8).reshape(-1, LENGTH)
        prints = Fingerprints(lines, np.array([number for number, _ in owners], np.int64))
    return Rows(records, prints, {number: text for number, (_, _, text) in enumerate(rows) if text})


class Table:
    """Arrays that grow: to the size foretold at once, and by half of it where nobody knew."""

    def __init__(self, expected: int, near: bool) -> None:
        self._count = self._print_count = 0
        self._records = np.zeros(max(expected, 1), RECORD)
        self._prints = np.zeros((max(expected, 1), LENGTH), np.uint8) if near else None
        self._items = np.zeros(max(expected, 1), np.int64)
        self._texts: dict[int, str] = {}

    def add(self, rows: Rows) -> None:
        end = self._count + len(rows)
        self._records = _grow(self._records, end)
        self._records[self._count : end] = rows.records
        if self._prints is not None and rows.prints is not None:
            start, stop = self._print_count, self._print_count + len(rows.prints.rows)
            self._prints, self._items = _grow(self._prints, stop), _grow(self._items, stop)
            self._prints[start:stop], self._items[start:stop] = rows.prints.rows, rows.prints.items + self._count
            self._print_count = stop
        self._texts.update({self._count + number: text for number, text in rows.texts.items()})
        self._count = end

    def finished(self) -> Rows:
        stop = self._print_count
        prints = Fingerprints(self._prints[:stop], self._items[:stop]) if self._prints is not None else None
        return Rows(self._records[: self._count], prints, self._texts)


def _grow(array: NDArray[Any], needed: int) -> NDArray[Any]:
    if needed <= len(array):
        return array
    return np.resize(array, (max(needed, len(array) * 3 // 2), *array.shape[1:]))
