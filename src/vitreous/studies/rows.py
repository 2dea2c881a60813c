"""The rows of a study as files, one for each cell, and the loop that runs the cells which have none yet.

Several processes or machines may work in one folder: a row is written when its cell is done, and a lock keeps others from it.
The ranks that `torchrun` starts work on the same cell together.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.core.distributed import World, broadcast_or_raise
from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import Busy, locked, write_text
from vitreous.core.progress import describe_seconds, say
from vitreous.core.untrusted_json import read_json
from vitreous.studies.study import Cell

Row = dict[str, Any]
RunCell = Callable[[Cell, Mapping[str, Row]], Row | None]
"""The row of a cell, given the rows so far; None where it has to wait for others."""

_WAIT = 1.0  # seconds, while another process has the cells that are left


@contextlib.contextmanager
def locked_together(world: World, lock: Path) -> Iterator[None]:
    """The main rank holds the lock for all ranks; Busy at all of them where another process has it."""
    with contextlib.ExitStack() as held:
        broadcast_or_raise(world, lambda: held.enter_context(locked(lock, "another process is at it")))
        yield


@dataclass(frozen=True)
class RowFiles:
    out: Path
    world: World

    def path(self, cell: Cell) -> Path:
        return self.out / "rows" / f"{cell.key()}.json"

    def read(self, cells: Sequence[Cell]) -> dict[str, Row]:
        """By the cells' keys."""
        found = {cell.key(): path for cell in cells if (path := self.path(cell)).exists()} if self.world.is_main else {}
        rows: dict[str, Row] = broadcast_or_raise(self.world, lambda: {key: _read_row(path) for key, path in found.items()})
        return rows

    def run_missing(self, cells: Sequence[Cell], done: Mapping[str, Row], run: RunCell) -> Iterator[Row]:
        """The rows of cells as they are finished, here or by another process."""
        rows = {**done, **self.read(cells)}
        left = [cell for cell in cells if cell.key() not in rows]
        yield from (row for key, row in rows.items() if key not in done)
        began, spent = time.monotonic(), 0
        while left:
            row = next((row for cell in left if (row := self._try(cell, rows, run)) is not None), None)
            if row is None:  # all that could be run here is being run elsewhere
                time.sleep(_WAIT)
                row = next(iter(self.read(left).values()), None)
            if row is None:
                continue
            rows[str(row["cell"])] = row
            left = [cell for cell in left if cell.key() != row["cell"]]
            spent += 1
            if self.world.is_main:
                remaining = describe_seconds((time.monotonic() - began) / spent * len(left))
                trial = "trial, " if row["role"] == "trial" else ""
                say(
                    f"{len(cells) - len(left)} of {len(cells)}: {row['arm']}, seed {row['seed']}: "
                    f"{100 * row['accuracy']:.1f} % ({trial}{row['seconds']:.0f} s); about {remaining} left"
                )
            yield row

    def _try(self, cell: Cell, rows: Mapping[str, Row], run: RunCell) -> Row | None:
        """The row of this cell, unless it waits for others, or another process has it or its upstream run."""
        path = self.path(cell)
        try:
            with locked_together(self.world, path.with_suffix(".lock")):
                if found := self.read([cell]):
                    return found[cell.key()]
                row = run(cell, rows)
                if row is not None and self.world.is_main:
                    write_text(path, json.dumps(row) + "\n")
                return row
        except Busy:
            return None


def _read_row(path: Path) -> Row:
    try:
        row: Row = read_json(path)
        row["cell"], row["arm"], row["accuracy"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VitreousError(f"{path}: is no row of a study ({one_line(error)}); delete it to run its cell again") from error
    return row


def in_order(cells: Sequence[Cell], rows: Mapping[str, Row]) -> list[Row]:
    return [rows[cell.key()] for cell in cells if cell.key() in rows]
