"""Cells of tables that people open with spreadsheets."""

from __future__ import annotations

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet would take a cell that begins so for a formula


def harmless(cell: str, before: str = "'") -> str:
    """Names come from strangers, and spreadsheets run formulas: `before` keeps such a cell from being one."""
    return before + cell if cell.startswith(_FORMULA) else cell
