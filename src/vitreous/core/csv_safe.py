"""Cells of tables that people open with spreadsheets."""

from __future__ import annotations

import re

# A spreadsheet runs what begins so. A mere "-", as standard input is called, is nothing.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n].", re.DOTALL)


def harmless(cell: str, before: str = "'") -> str:
    """Names come from strangers, and spreadsheets run formulas: `before` keeps such a cell from being one."""
    return before + cell if _FORMULA.match(cell) else cell


def as_it_was(cell: str) -> str:
    """What `harmless` was given, with its usual `before`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
