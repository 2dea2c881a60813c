"""A row of predictions, written and read back as JSON lines or CSV.

JSON is one object a line: `path, classes, probabilities`, or `path, error`. CSV has `path,class,probability,error`, and
for more than one class `path,class1,probability1,class2,...,error`. With prediction sets, JSON has `set, abstain` too, and CSV
the same as columns before `error`; there a set is a list in JSON.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.printable import escape_formula, unescape_formula
from vitreous.core.untrusted_json import json_line, parse_json

Format = Literal["jsonl", "csv"]


@dataclass(frozen=True)
class Row:
    """One image: its most likely classes, or what was wrong with it."""

    path: str
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None
    set: tuple[str, ...] | None = None  # classes that it may have, best first; None where no coverage was asked for

    @property
    def abstain(self) -> bool:
        """Whether several classes are left."""
        return self.set is not None and len(self.set) > 1

    def record(self) -> dict[str, Any]:
        if self.error is not None:
            return {"path": self.path, "error": self.error}
        sets = {} if self.set is None else {"set": self.set, "abstain": self.abstain}
        return {"path": self.path, "classes": self.classes, "probabilities": self.probabilities, **sets}


class AsJson:
    head = ""

    def line(self, row: Row) -> str:
        return json_line(row.record()) + "\n"

    def row(self, line: str) -> Row:
        """What a line says; ValueError where it says nothing of the kind."""
        record = parse_json(line)
        try:
            if "error" in record:
                return Row(str(record["path"]), error=str(record["error"]))
            values = (math.nan if p is None else float(p) for p in record["probabilities"])
            members = tuple(map(str, record["set"])) if "set" in record else None
            return Row(str(record["path"]), tuple(map(str, record["classes"])), tuple(values), set=members)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a row: {one_line(error)}") from error

    def named(self, path: str) -> str:
        """A path as it comes back from a line."""
        return path


class AsCsv:
    def __init__(self, top: int, sets: bool = False) -> None:
        """`top` is how many classes a row has room for; `sets` whether it has prediction sets."""
        self.top, self.sets = top, sets
        numbers = [""] if top == 1 else [str(number) for number in range(1, top + 1)]
        columns = [f"{name}{number}" for number in numbers for name in ("class", "probability")]
        self.head = ",".join(("path", *columns, *(("set", "abstain") if sets else ()), "error")) + "\n"

    def line(self, row: Row) -> str:
        names = map(escape_formula, row.classes)
        cells = [cell for pair in zip(names, map(repr, row.probabilities), strict=True) for cell in pair]
        cells += [""] * (2 * self.top - len(cells))
        if self.sets:
            cells += ["", ""] if row.set is None else [json_line(row.set), str(row.abstain).lower()]
        return ",".join(map(_quoted, (escape_formula(self.named(row.path)), *cells, escape_formula(row.error or "")))) + "\n"

    def row(self, line: str) -> Row:
        """Rows are compared with the list of images when a command resumes, so the name itself has to come back."""
        path, *pairs, error = next(csv.reader(io.StringIO(line, newline=""), strict=True))
        members = None
        if self.sets:
            *pairs, text, _ = pairs
            members = tuple(map(str, parse_json(text))) if text else None
        if len(pairs) != 2 * self.top:
            raise ValueError(f"{len(pairs) + 2} columns, where there are {2 * self.top + 2}")
        if error:
            return Row(unescape_formula(path), error=unescape_formula(error))
        classes, probabilities = pairs[::2], pairs[1::2]
        there = sum(p != "" for p in probabilities)
        names, shares = tuple(map(unescape_formula, classes[:there])), tuple(map(float, probabilities[:there]))
        return Row(unescape_formula(path), names, shares, set=members)

    def named(self, path: str) -> str:
        """CSV has no escapes, and a file that is not valid UTF-8 would stop its readers."""
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _quoted(cell: str) -> str:
    special = any(c in cell for c in ',"\r\n') or cell != cell.strip()
    return '"' + cell.replace('"', '""') + '"' if special else cell


Writing = AsJson | AsCsv


def writing(format: Format, top: int, sets: bool = False) -> Writing:
    return AsJson() if format == "jsonl" else AsCsv(top, sets)


# Reading back ------------------------------------------------------------------------------------------------------------


def whole_lines(path: Path, quotes: bool) -> Iterator[tuple[int, str]]:
    """The whole lines of a file and where each ends. What follows the last end of a line is a truncated row.

    With `quotes`, an end of line between quotes is part of a cell, as in CSV.
    """
    end = 0
    held = b""
    with path.open("rb") as file:
        for piece in file:
            held += piece
            if not piece.endswith(b"\n") or (quotes and held.count(b'"') % 2):
                continue
            end += len(held)
            yield end, held.decode("utf-8", "surrogateescape")
            held = b""


def read_rows(path: Path, way: Writing) -> Iterator[tuple[int, Row]]:
    """The whole rows of a file and where each ends; the head of a CSV file is checked and passed over."""
    lines = whole_lines(path, quotes=isinstance(way, AsCsv))
    if way.head:
        first = next(lines, None)
        if first is not None and first[1] != way.head:
            raise VitreousError(f"{path}: its first line is not {way.head.strip()!r}; choose another --out")
    for number, (end, line) in enumerate(lines, start=1):
        try:
            yield end, way.row(line)
        except (ValueError, csv.Error) as error:
            raise VitreousError(
                f"{path}: row {number:,} cannot be read ({one_line(error, 80)}); it was changed, so choose another --out"
            ) from error
