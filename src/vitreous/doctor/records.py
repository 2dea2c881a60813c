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
    """Rows that are added up in buffers, which grow in place: there is never a second copy of them."""

    def __init__(self, near: bool) -> None:
        self._near, self._count = near, 0
        self._records, self._prints, self._items = bytearray(), bytearray(), bytearray()
        self._texts: dict[int, str] = {}

    def add(self, rows: Rows) -> None:
        self._records += rows.records.data
        if rows.prints is not None:
            self._prints += rows.prints.rows.data
            self._items += (rows.prints.items + self._count).data
        self._texts.update({self._count + number: text for number, text in rows.texts.items()})
        self._count += len(rows)

    def finished(self) -> Rows:
        rows, items = np.frombuffer(self._prints, np.uint8).reshape(-1, LENGTH), np.frombuffer(self._items, np.int64)
        prints = Fingerprints(rows, items) if self._near else None
        return Rows(np.frombuffer(self._records, RECORD), prints, self._texts)
