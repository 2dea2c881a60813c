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
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vitreous.core.untrusted_json import parse_json
from vitreous.reports.series import POINTS, Floats, number, thin

CELLS = POINTS  # of one curve: up to here every record is a point of its own
CURVES = 64  # of one file; an untrusted file may name any number
LONGEST = 1 << 20  # bytes of a line; a longer one is no record
BUDGET = 8 << 20  # bytes read in one look: about half a second, and the page asks again
NAMES = 80  # letters of a key, beyond which it is no name of a quantity; a split is cut there

_BLOCK = 1 << 20
_SEAM = 64  # bytes before the place where reading stopped: if they have changed, the file is another
_LAST_STEP = 10**12

PLACES = ("epoch", "images", "seconds", "flops", "lr")
"""Told by training and evaluation alike, so that they are one curve for all splits, of split `all`."""

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


class Track:
    """One curve. Beyond `CELLS` steps, neighbours share a cell: it keeps their lowest, their highest and their mean."""

    def __init__(self) -> None:
        self.width = 1
        self.last: tuple[int, float] | None = None
        self._cells: dict[int, _Cell] = {}

    def add(self, step: int, value: float) -> None:
        self.last = (step, value)
        at = step // self.width
        there = self._cells.get(at)
        if there is not None and self.width > 1:
            there.join(_Cell(step, value))
            return
        self._cells[at] = _Cell(step, value)  # the same step again, after a resume: the later record counts
        while len(self._cells) > CELLS:
            self._widen()

    def _widen(self) -> None:
        self.width *= 2
        old, self._cells = self._cells, {}
        for at in sorted(old):
            there = self._cells.get(at // 2)
            if there is None:
                self._cells[at // 2] = old[at]
            else:
                there.join(old[at])

    def points(self, after: int = -1) -> tuple[Floats, Floats]:
        """Steps and values behind `after`, at most `POINTS`; the last record is always among them."""
        found = dict(point for at, cell in self._cells.items() if at >= after // self.width for point in cell.points())
        if self.last is not None:
            found[self.last[0]] = self.last[1]
        steps = np.array(sorted(step for step in found if step > after), dtype=np.float64)
        return thin(steps, np.array([found[int(step)] for step in steps], dtype=np.float64))

    def means(self) -> tuple[Floats, Floats]:
        """Of cells that hold several records: lowest and highest alone would not tell what a smoothed curve has to show."""
        cells = [(at, self._cells[at]) for at in sorted(self._cells) if self._cells[at].count] if self.width > 1 else []
        steps = [(at + 0.5) * self.width - 0.5 for at, _ in cells]
        return np.array(steps, dtype=np.float64), np.array([cell.total / cell.count for _, cell in cells], dtype=np.float64)


class _Cell:
    __slots__ = ("count", "high", "high_at", "low", "low_at", "total")

    def __init__(self, step: int, value: float) -> None:
        finite = math.isfinite(value)
        self.count, self.total = int(finite), value if finite else 0.0
        self.low_at = self.high_at = step
        self.low = self.high = value

    def join(self, other: _Cell) -> None:
        if not other.count:
            return  # a gap among numbers is not seen at this width
        if not self.count or other.low < self.low:
            self.low_at, self.low = other.low_at, other.low
        if not self.count or other.high > self.high:
            self.high_at, self.high = other.high_at, other.high
        self.count, self.total = self.count + other.count, self.total + other.total

    def points(self) -> tuple[tuple[int, float], ...]:
        return (self.low_at, self.low), (self.high_at, self.high)


class Metrics:
    """What is known of one file. `look` brings it up to date; everything else is about what was read so far."""

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
        self.step, self.skipped, self.left_out, self.unread = 0, 0, 0, 0

    @property
    def generation(self) -> str:
        """Another one when the file was begun anew: a run that resumes forgets what it had measured after its last state."""
        return f"{self._identity[1]:x}-{self._begun}"

    def look(self, budget: int = BUDGET) -> None:
        """Read what has been appended, up to so many bytes; `unread` says how many are left. Raises OSError."""
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
        if self._dropping:
            self._dropping = False
            return
        if not line.strip():
            return
        record = record_of(line)
        if record is None:
            self.skipped += 1
            return
        step, split = int(record["step"]), str(record.get("split", "all"))[:NAMES]
        self.step = step
        for key, value in record.items():
            if key in _NO_CURVES or not (value is None or isinstance(value, (int, float))) or isinstance(value, bool):
                continue
            name = (key, "all" if key in PLACES else split)
            track = self.tracks.get(name)
            if track is None:
                if len(self.tracks) >= CURVES or len(key) > NAMES:
                    self.left_out += 1
                    continue
                track = self.tracks[name] = Track()
            track.add(step, number(value))
