"""Features in the formats of other tools: NumPy, CSV and Parquet, written a block of rows at a time.

features.npy      the features (n, D), and features.npy.rows.csv: id, split, labels of each row
features.csv      id, split, labels, then a column for each feature
features.parquet  id, split, labels (a list), features (a list of fixed size)
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.format import write_array_header_1_0

from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_file, beside
from vitreous.core.printable import escape_formula
from vitreous.inference.feature_file import FeatureFile
from vitreous.inference.outputs import FeatureKind

FeatureFormat = Literal["safetensors", "npy", "parquet", "csv"]
FORMATS: tuple[FeatureFormat, ...] = ("safetensors", "npy", "parquet", "csv")
_BLOCK = 4096  # rows


def check_format(format: FeatureFormat, kind: FeatureKind) -> None:
    """Refuses what could not be written in the end."""
    if kind == "patches" and format in ("csv", "parquet"):
        raise VitreousError(f"--tokens: a row of {format} has room for one vector; use --format safetensors or npy")
    if format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise VitreousError("--format parquet: pyarrow is not installed; pip install pyarrow, or use npy, csv or safetensors")


def export_features(file: FeatureFile, out: Path, format: FeatureFormat) -> None:
    if format == "npy":
        with atomic_file(beside(out, ".rows.csv")) as part:
            _write_csv(file, part, features=False)
    with atomic_file(out) as part:
        {"npy": _write_npy, "csv": _write_csv, "parquet": _write_parquet}[format](file, part)


def _blocks(file: FeatureFile) -> Iterator[range]:
    return (range(start, min(start + _BLOCK, len(file))) for start in range(0, len(file), _BLOCK))


def _write_npy(file: FeatureFile, part: Path) -> None:
    with part.open("wb") as out:
        write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": file.values.shape})
        for rows in _blocks(file):
            out.write(np.ascontiguousarray(file.values[rows.start : rows.stop]).data)


def _write_csv(file: FeatureFile, part: Path, features: bool = True) -> None:
    columns = [f"feature{number}" for number in range(file.values.shape[1])] if features else []
    with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("id", "split", "labels", *columns))
        for rows in _blocks(file):
            for row in rows:
                known = (file.id(row), file.split(row), "|".join(file.label_names(row)))
                writer.writerow((*map(escape_formula, known), *(map(str, file.values[row]) if features else ())))


def _write_parquet(file: FeatureFile, part: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    width = file.values.shape[1]
    text, vector = arrow.string(), arrow.list_(arrow.float32(), width)
    schema = arrow.schema([("id", text), ("split", text), ("labels", arrow.list_(text)), ("features", vector)])
    with parquet.ParquetWriter(part, schema) as writer:
        for rows in _blocks(file):
            values = arrow.array(np.ascontiguousarray(file.values[rows.start : rows.stop]).ravel())
            columns: list[Any] = [
                arrow.array([_valid(file.id(row)) for row in rows], text),
                arrow.array(map(file.split, rows), text),
                arrow.array([[*map(_valid, file.label_names(row))] for row in rows], arrow.list_(text)),
                arrow.FixedSizeListArray.from_arrays(values, width),
            ]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))


def _valid(text: str) -> str:
    """A name that is not valid Unicode, in escapes: Parquet's text is UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
