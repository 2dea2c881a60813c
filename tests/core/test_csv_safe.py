"""Untrusted names in tables: a spreadsheet runs none of them, and each comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitreous.core.printable import escape_formula, unescape_formula

STARTS = "=+-@\t\r\n"  # from which spreadsheets take a cell for a formula


@pytest.mark.parametrize("cell", [f"{start}cmd" for start in STARTS] + ["=1+1", "-2", "@SUM(A1)", "\n"])
def test_a_formula_is_none_any_more(cell: str) -> None:
    assert escape_formula(cell).lstrip("'") == cell
    assert len(cell) < 2 or escape_formula(cell)[0] not in STARTS
    assert len(cell) < 2 or escape_formula(cell, "./")[0] == "."


@pytest.mark.parametrize("cell", ["", "cat", "-", "a=b", "'quoted'", "cat-2"])
def test_other_cells_stay(cell: str) -> None:
    assert escape_formula(cell) == cell


@given(st.one_of(st.text(alphabet="'=+-@\t\n ab", max_size=6), st.text()))
def test_every_cell_comes_back(cell: str) -> None:
    assert unescape_formula(escape_formula(cell)) == cell
