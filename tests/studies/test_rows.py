"""Rows as files: what is missing is run, here or elsewhere; damage is named; ranks agree on the lock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.core.files import Busy, locked, write_text
from vitreous.core.progress import silence
from vitreous.studies import rows as rows_module
from vitreous.studies.rows import Row, RowFiles, in_order, locked_together
from vitreous.studies.study import Cell

ALONE = World(0, 1, torch.device("cpu"))
CELLS = [Cell(arm, seed, (), {}) for arm in ("a", "b") for seed in (0, 1)]


def row(cell: Cell) -> Row:
    found = {"cell": cell.key(), "arm": cell.arm, "seed": cell.seed, "role": cell.role}
    return {**found, "accuracy": 0.5, "seconds": 1.0}


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    files, run = RowFiles(tmp_path, ALONE), list[Cell]()

    def measure(cell: Cell, _: Mapping[str, Row]) -> Row:
        run.append(cell)
        if len(run) == 2:
            raise KeyboardInterrupt
        return row(cell)

    done = {CELLS[0].key(): row(CELLS[0])}
    with silence():
        with pytest.raises(KeyboardInterrupt):
            list(files.run_missing(CELLS, done, measure))
        assert list(files.read(CELLS)) == [CELLS[1].key()]
        found = list(files.run_missing(CELLS, done, measure))
    assert run == [CELLS[1], CELLS[2], CELLS[2], CELLS[3]]
    assert found == [row(cell) for cell in CELLS[1:]]
    assert in_order(CELLS, {**done, **files.read(CELLS)}) == [row(cell) for cell in CELLS]
    assert not list(tmp_path.rglob("*.lock"))


def test_a_cell_that_waits_for_others_is_tried_again(tmp_path: Path) -> None:
    def after_the_others(cell: Cell, rows: Mapping[str, Row]) -> Row | None:
        return None if cell == CELLS[0] and len(rows) < 3 else row(cell)

    with silence():
        found = list(RowFiles(tmp_path, ALONE).run_missing(CELLS, {}, after_the_others))
    assert [own["cell"] for own in found] == [cell.key() for cell in (*CELLS[1:], CELLS[0])]


def test_cells_of_another_process_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RowFiles(tmp_path, ALONE)
    monkeypatch.setattr(rows_module, "_WAIT", 0.0)

    def measure(cell: Cell, _: Mapping[str, Row]) -> Row:
        if cell == CELLS[0]:
            raise Busy("another process is at it")
        if cell == CELLS[3]:  # meanwhile the other one has finished
            write_text(files.path(CELLS[0]), json.dumps({**row(CELLS[0]), "accuracy": 0.25}))
        return row(cell)

    with silence():
        found = {own["cell"]: own["accuracy"] for own in files.run_missing(CELLS, {}, measure)}
    assert found == {CELLS[0].key(): 0.25, **{cell.key(): 0.5 for cell in CELLS[1:]}}


def test_a_lock_of_another_process_is_busy(tmp_path: Path) -> None:
    with locked(tmp_path / "a.lock"), pytest.raises(Busy), locked_together(ALONE, tmp_path / "a.lock"):
        pass


@pytest.mark.parametrize("text", ["{", "[]", '{"cell": "x", "arm": "a"}'])
def test_a_damaged_row_is_named(text: str, tmp_path: Path) -> None:
    files = RowFiles(tmp_path, ALONE)
    write_text(files.path(CELLS[0]), text)
    with pytest.raises(VitreousError, match=r"is no row of a study .*delete it to run its cell again"):
        files.read(CELLS)
