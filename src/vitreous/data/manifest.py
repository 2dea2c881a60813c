"""A list of images in a file: CSV (or TSV) with a header, or JSON lines.

    path,label,split                     {"path": "a/1.jpg", "label": "cat", "split": "train"}
    a/1.jpg,cat,train                    {"path": "a/2.jpg", "label": ["cat", "dog"]}

Paths are relative to the manifest's own folder, or absolute. `label` may be empty or missing, or several: a list in JSON,
`cat;dog` in CSV. `split` is train, validation (or val) or test; without it there is one split.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.data.file_source import FileSource, TableBuilder
from vitreous.data.folder import SPLIT_NAMES
from vitreous.data.source import ALL, SPLITS, Dataset
from vitreous.errors import VitreousError, nearest

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
_KEYS = ("path", "label", "split")
_SEPARATOR = ";"

Row = tuple[str, tuple[str, ...], str]  # path, labels, split


def open_manifest(path: Path) -> Dataset:
    rows = _read(path)
    classes = tuple(sorted({label for _, labels, _ in rows for label in labels}))
    number = {name: index for index, name in enumerate(classes)}
    present = {split for _, _, split in rows}
    if ALL in present and len(present) > 1:
        raise VitreousError(f"{path}: some rows name a split and some do not; fill in the rest or leave the column out")
    builder, ranges, own = TableBuilder(str(path.parent.resolve())), {}, {}
    for split in (*SPLITS, ALL):
        of_split = [(name, labels) for name, labels, other in rows if other == split]
        if not of_split:
            continue
        start = len(builder)
        builder.add_labelled(
            "", [n for n, _ in of_split], [tuple(number[x] for x in labels) or (-1,) for _, labels in of_split]
        )
        ranges[split] = (start, len(builder))
        used = {label for _, labels in of_split for label in labels}
        own[split] = tuple(name for name in classes if name in used)
    table = builder.table()
    splits = {split: FileSource(str(path), split, classes, table, *extent) for split, extent in ranges.items()}
    return Dataset(str(path), classes, splits, own_classes=own)


def _read(path: Path) -> list[Row]:
    rows: list[Row] = []
    seen: dict[str, int] = {}
    try:
        for line, fields in _csv(path) if path.suffix.lower() in (".csv", ".tsv") else _json(path):
            row = _row(path, line, fields)
            if row[0] in seen:
                raise VitreousError(f"{path}: line {line}: {row[0]} stands on line {seen[row[0]]} already; remove one of them")
            seen[row[0]] = line
            rows.append(row)
    except UnicodeDecodeError as error:
        raise VitreousError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except csv.Error as error:
        raise VitreousError(f"{path}: not a CSV file ({error})") from error
    except OSError as error:
        raise VitreousError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not rows:
        raise VitreousError(f"{path}: lists no images")
    return rows


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        _check_keys(path, 1, reader.fieldnames or ())
        for fields in reader:
            if None in fields:
                raise VitreousError(f"{path}: line {reader.line_num}: more fields than the header has; quote the commas")
            yield reader.line_num, fields


def _json(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except ValueError as error:
                raise VitreousError(f"{path}: line {number}: not JSON ({error})") from error
            if not isinstance(fields, dict):
                raise VitreousError(f'{path}: line {number}: expected an object such as {{"path": "a.jpg", "label": "cat"}}')
            _check_keys(path, number, fields)
            yield number, fields


def _check_keys(path: Path, line: int, keys: Any) -> None:
    names = [str(key) for key in keys]
    if "path" not in names:
        raise VitreousError(f"{path}: line {line}: no `path` among {', '.join(names) or 'nothing'}; expected path,label,split")
    for name in names:
        if name not in _KEYS and any(name.lower() in (key, key + "s") or name.strip().lower() == key for key in _KEYS):
            raise VitreousError(f"{path}: line {line}: {name!r}; did you mean {nearest(name, _KEYS)[0]!r}?")


def _row(path: Path, line: int, fields: dict[str, Any]) -> Row:
    name, label, split = (fields.get(key) for key in _KEYS)
    if not isinstance(name, str) or not name.strip():
        raise VitreousError(f"{path}: line {line}: no path")
    if os.sep != "/":
        name = name.replace(os.sep, "/")
    if label is None or label == "":
        labels: tuple[str, ...] = ()
    elif isinstance(label, list):
        labels = tuple(_text(path, line, one) for one in label)
    elif isinstance(label, str) and path.suffix.lower() in (".csv", ".tsv"):
        labels = tuple(part.strip() for part in label.split(_SEPARATOR) if part.strip())
    else:
        labels = (_text(path, line, label),)
    if not split:
        return name, labels, ALL
    if not isinstance(split, str) or split.strip().lower() not in SPLIT_NAMES:
        hint = nearest(str(split), SPLITS)[0]
        raise VitreousError(f"{path}: line {line}: split {split!r}; did you mean {hint!r}? (train, validation, test)")
    return name, labels, SPLIT_NAMES[split.strip().lower()]


def _text(path: Path, line: int, label: Any) -> str:
    if isinstance(label, bool) or not isinstance(label, (str, int)) or label == "":
        raise VitreousError(f"{path}: line {line}: label {label!r}; a label is a name or a whole number")
    return str(label)
