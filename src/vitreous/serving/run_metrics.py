"""Incremental reader of a run's metrics.jsonl while it grows, in memory that does not grow with the file.

A page asks every two seconds, and a file may have any size. So each file is read once: what has been read is kept as curves of
at most `CELLS` cells, and a later look reads only what was appended. While a curve has no more records than cells it is exact.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import threading
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from vitreous.core.untrusted_json import parse_json
from vitreous.reports.series import POINTS, Floats, number, thin

Point: TypeAlias = tuple[int, float]  # step, value

CELLS = POINTS  # of one curve: up to here every record is a point of its own
CURVES = 64  # of one file; an untrusted file may name any number
LONGEST = 1 << 20  # bytes of a line; a longer one is no record
BUDGET = 8 << 20  # bytes read in one look: about half a second, and the page asks again
NAMES = 80  # letters of a key, beyond which it is no name of a quantity; a split is cut there

_BLOCK = 1 << 20
_SEAM = 64  # bytes before the place where reading stopped: if they have changed, the file is another
_LAST_STEP = 10**12

PLACES = ("epoch", "images", "seconds", "flops", "lr")
"""Recorded by training and evaluation alike, so that they are one curve for all splits, of split `all`."""

_NO_CURVES = ("step", "split", "n")


@contextlib.contextmanager
def plain_file(path: Path) -> Iterator[BinaryIO]:
    """A file to read that really lies here. Links are not followed: what they lead to was not meant to be shown.

    Raises OSError; also for pipes and devices, which could be waited for in vain.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():  # where the system has no such flag
        raise OSError(f"{path.name} is a link")
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is not a file")
        yield file


def record_of(line: bytes) -> dict[str, Any] | None:
    """A line as a record; None for what is none: no JSON, no object, or without a step that an axis could hold."""
    try:
        found = parse_json(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    step = number(found.get("step")) if isinstance(found, dict) else math.nan
    return found if 0 <= step <= _LAST_STEP and step == int(step) else None


class Cell(NamedTuple):
    """Neighbouring records of one curve: the points with the lowest and the highest value, and what their mean needs."""

    low: Point
    high: Point
    values: int  # finite ones
    total: float

    def join(self, other: Cell) -> Cell:
        if not (self.values and other.values):
            return self if self.values else other  # a gap among numbers is not seen at this width
        low, high = min(self.low, other.low, key=itemgetter(1)), max(self.high, other.high, key=itemgetter(1))
        return Cell(low, high, self.values + other.values, self.total + other.total)


class Track:
    """One curve. Beyond `CELLS` steps, neighbours share a cell: it keeps their lowest, their highest and their mean."""

    def __init__(self) -> None:
        self.width = 1
        self.last: Point | None = None
        self._cells: dict[int, Cell] = {}

    def add(self, step: int, value: float) -> None:
        self.last = (step, value)
        finite = math.isfinite(value)
        if self.width == 1:
            self._cells.pop(step, None)  # the same step again, after a resume: the later record counts
        self._put(step // self.width, Cell(self.last, self.last, int(finite), value if finite else 0.0))
        while len(self._cells) > CELLS:
            self.width *= 2
            old, self._cells = self._cells, {}
            for at in sorted(old):
                self._put(at // 2, old[at])

    def _put(self, at: int, cell: Cell) -> None:
        self._cells[at] = self._cells[at].join(cell) if at in self._cells else cell

    def points(self, after: int = -1) -> tuple[Floats, Floats]:
        """Steps and values behind `after`, at most `POINTS`; the last record is always among them."""
        cells = [cell for at, cell in self._cells.items() if at >= after // self.width]
        found = dict(point for cell in cells for point in (cell.low, cell.high))
        if self.last is not None:
            found[self.last[0]] = self.last[1]
        steps = np.array(sorted(step for step in found if step > after), dtype=np.float64)
        return thin(steps, np.array([found[int(step)] for step in steps], dtype=np.float64))

    def means(self) -> tuple[Floats, Floats]:
        """Of cells that hold several records: lowest and highest alone would not tell what a smoothed curve has to show."""
        cells = [(at, self._cells[at]) for at in sorted(self._cells) if self._cells[at].values]
        steps = [(at + 0.5) * self.width - 0.5 for at, _ in cells]
        return np.array(steps, dtype=np.float64), np.array([cell.total / cell.values for _, cell in cells], dtype=np.float64)


class MetricsReader:
    """What was read of one file so far; `read_appended` brings it up to date."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._begun = 0
        self._forget((0, 0))

    def _forget(self, identity: tuple[int, int]) -> None:
        self._begun += 1
        self._identity, self._offset, self._seam = identity, 0, b""
        self._dropping = False
        self.tracks: dict[tuple[str, str], Track] = {}
        self.skipped, self.left_out, self.unread = 0, 0, 0

    @property
    def generation(self) -> str:
        """Another one when the file was started over: a run that resumes forgets what it had measured after its last state."""
        return f"{self._identity[1]:x}-{self._begun}"

    def read_appended(self, budget: int = BUDGET) -> None:
        """Up to so many bytes; `unread` says how many are left. Raises OSError."""
        with plain_file(self.path) as file:
            about = os.fstat(file.fileno())
            identity = (about.st_dev, about.st_ino)
            if identity != self._identity or about.st_size < self._offset or not self._same(file):
                self._forget(identity)
            file.seek(self._offset)
            rest = b""
            while budget > 0 and (block := file.read(min(_BLOCK, budget))):
                budget -= len(block)
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    self._take(line)
                    self._offset += len(line) + 1
                if len(rest) > LONGEST:
                    self.skipped += not self._dropping
                    self._dropping, self._offset, rest = True, self._offset + len(rest), b""
            # Half a line is being written just now, or was when its process was killed: it is read again next time. One that
            # is whole without its line break is a record, because no part of an object is an object.
            if rest and not self._dropping and record_of(rest) is not None:
                self._take(rest)
                self._offset += len(rest)
            self.unread = max(0, about.st_size - self._offset - len(rest))
            file.seek(max(0, self._offset - _SEAM))
            self._seam = file.read(min(_SEAM, self._offset))

    def _same(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._seam))
        return file.read(len(self._seam)) == self._seam

    def _take(self, line: bytes) -> None:
        dropping, self._dropping = self._dropping, False
        if dropping or not line.strip():
            return
        record = record_of(line)
        if record is None:
            self.skipped += 1
            return
        step, split = int(record["step"]), str(record.get("split", "all"))[:NAMES]
        for key, value in record.items():
            if key in _NO_CURVES or not (value is None or isinstance(value, (int, float))) or isinstance(value, bool):
                continue
            name = (key, "all" if key in PLACES else split)
            if name in self.tracks or (len(self.tracks) < CURVES and len(key) <= NAMES):
                self.tracks.setdefault(name, Track()).add(step, number(value))
            else:
                self.left_out += 1
