"""Manifests, read and written: lists of images in CSV (or TSV) with a header, or JSON lines.

    path,label,split                     {"path": "a/1.jpg", "label": "cat", "split": "train"}
    a/1.jpg,cat,train                    {"path": "a/2.jpg", "label": ["cat", "dog"]}

Paths are relative to the manifest's own folder, or absolute. `label` may be empty or missing, or several: a list in JSON,
`cat;dog` in CSV. `split` is train, validation (or val) or test; without it there is one split. Where a column `new_label`, as
in the relabel.csv of `vitreous evaluate`, is filled in, it stands in place of the label.
"""

from __future__ import annotations

import csv
import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError, did_you_mean, first_few
from vitreous.core.files import atomic_file
from vitreous.core.untrusted_json import parse_json
from vitreous.data.conventions import SPLIT_NAMES, sort_class_names
from vitreous.data.source import ALL, SPLITS, Dataset
from vitreous.data.sources.file_source import FileSource, build_table

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
_KEYS = ("path", "label", "split")
_CORRECTION = "new_label"
_SEPARATOR = ";"
_NO_TEXT = re.compile("[\ud800-\udfff]")  # halves of characters: bytes that are not UTF-8, or a broken escape in JSON
_NO_FILE_NAME = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")  # in a name of a file, some of them stand for any bytes

Row = tuple[str, tuple[str, ...], str]  # path, labels, split


def open_manifest(path: Path) -> Dataset:
    rows, ignored = _read_manifest(path)
    notes = (f"{path}: columns that are not used: {first_few(ignored)}",) if ignored else ()
    classes = sort_class_names({label for _, labels, _ in rows for label in labels})
    number = {name: index for index, name in enumerate(classes)}
    by_split = {split: [row for row in rows if row[2] == split] for split in (*SPLITS, ALL)}
    by_split = {split: own for split, own in by_split.items() if own}
    if ALL in by_split and len(by_split) > 1:
        raise VitreousError(f"{path}: some rows name a split and some do not; fill in the rest or leave the column out")
    groups = {
        split: [("", [name for name, _, _ in own], [tuple(number[x] for x in labels) for _, labels, _ in own])]
        for split, own in by_split.items()
    }
    table, ranges = build_table(str(path.parent.resolve()), groups)
    splits = {split: FileSource(str(path), split, classes, table, *extent) for split, extent in ranges.items()}
    used = {split: {label for _, labels, _ in own for label in labels} for split, own in by_split.items()}
    own_classes = {split: tuple(name for name in classes if name in names) for split, names in used.items()}
    return Dataset(str(path), classes, splits, notes, own_classes=own_classes)


def _read_manifest(path: Path) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    seen: dict[str, int] = {}
    ignored: dict[str, None] = {}
    try:
        for line, fields in _read_csv(path) if _is_table(path) else _read_json_lines(path):
            row = _parse_row(path, line, fields)
            ignored.update({str(key): None for key in fields if key not in (*_KEYS, _CORRECTION)})
            if row[0] in seen:
                raise VitreousError(f"{path}: line {line}: {row[0]} stands on line {seen[row[0]]} already; remove one of them")
            seen[row[0]] = line
            rows.append(row)
    except csv.Error as error:
        raise VitreousError(f"{path}: not a CSV file ({error})") from error
    except OSError as error:
        raise VitreousError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not rows:
        raise VitreousError(f"{path}: lists no images; after the header, each line names one")
    return rows, list(ignored)


def _read_csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, delimiter=_delimiter(path), strict=True)
        _check_keys(path, 1, reader.fieldnames or ())
        for fields in reader:
            if None in fields:
                raise VitreousError(f"{path}: line {reader.line_num}: more fields than the header has; quote the commas")
            yield reader.line_num, fields


def _read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                fields = parse_json(line)
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
    for name in names:  # a mistyped column would silently leave every image without a label
        close = difflib.get_close_matches(name.strip().lower(), [key for key in _KEYS if key not in names], 1, cutoff=0.7)
        if name not in _KEYS and close:
            raise VitreousError(f"{path}: line {line}: {name!r}; did you mean {close[0]!r}?")


def _parse_row(path: Path, line: int, fields: dict[str, Any]) -> Row:
    name, label, split = (fields.get(key) for key in _KEYS)
    corrected = fields.get(_CORRECTION)
    if corrected not in (None, []) and str(corrected).strip():  # 0 is a name for a class
        label = corrected
    if not isinstance(name, str) or not name.strip():
        raise VitreousError(f"{path}: line {line}: no path")
    name = _normalise_path(path, line, name)
    if label is None or label == "":
        labels: tuple[str, ...] = ()
    elif isinstance(label, list):
        labels = tuple(_parse_label(path, line, one) for one in label)
    elif isinstance(label, str) and _is_table(path):
        labels = tuple(_check_unicode(path, line, part.strip()) for part in label.split(_SEPARATOR) if part.strip())
    else:
        labels = (_parse_label(path, line, label),)
    if not split:
        return name, labels, ALL
    if not isinstance(split, str) or split.strip().lower() not in SPLIT_NAMES:
        hint = did_you_mean(str(split), SPLITS)
        raise VitreousError(f"{path}: line {line}: split {split!r}; {hint}valid: train, validation, test")
    return name, labels, SPLIT_NAMES[split.strip().lower()]


def _parse_label(path: Path, line: int, label: Any) -> str:
    if isinstance(label, bool) or not isinstance(label, (str, int)) or label == "":
        raise VitreousError(f"{path}: line {line}: label {label!r}; a label is a name or a whole number")
    return _check_unicode(path, line, str(label))


def _normalise_path(manifest: Path, line: int, name: str) -> str:
    """Relative to the manifest's folder where it lies in it, and without detours, so that one file has one name."""
    if _NO_FILE_NAME.search(name):
        raise VitreousError(f"{manifest}: line {line}: a path with characters that no file name can have; correct it")
    folder = manifest.parent.resolve()
    path = Path(os.path.normpath(folder / name))
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()


def _check_unicode(path: Path, line: int, label: str) -> str:
    """Names of files may be any bytes; names of classes go into checkpoints and must be text."""
    if _NO_TEXT.search(label):
        raise VitreousError(f"{path}: line {line}: label {label!a} is not UTF-8 text; save the file as UTF-8")
    return label


# Writing ----------------------------------------------------------------------------------------------------------------------


def check_expressible(path: Path, labels: Iterable[str], splits: Iterable[str]) -> None:
    """Whether a manifest of this name can say all that, so that reading it gives the same again."""
    if path.suffix.lower() not in ENDINGS:
        raise VitreousError(f"{path}: a manifest's name must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    for label in labels:
        if not label or _NO_TEXT.search(label):
            raise VitreousError(f"{path}: the class name {label!a} is not text, which a manifest needs; rename the class")
        if _is_table(path) and (_SEPARATOR in label or label != label.strip()):
            raise VitreousError(f"{path}: the class name {label!a} cannot stand in {path.suffix}; use .jsonl")
    named = set(splits) - {"", ALL}
    if unknown := sorted(named - set(SPLITS)):
        raise VitreousError(f"{path}: the split {unknown[0]!a} cannot stand in a manifest; it knows {', '.join(SPLITS)}")


def write_manifest(path: Path, rows: Iterable[Row]) -> None:
    """Paths are written as they are given; "" and "all" stand for no split. Whole or not at all."""
    kept = [(name, labels, "" if split == ALL else split) for name, labels, split in rows]
    _check_rows(path, kept)
    with atomic_file(path) as part, part.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        if _is_table(path):
            writer = csv.writer(file, delimiter=_delimiter(path))
            writer.writerows([_KEYS, *((name, _SEPARATOR.join(labels), split) for name, labels, split in kept)])
        else:
            for name, labels, split in kept:
                fields = {"path": name, "label": labels[0] if len(labels) == 1 else labels, "split": split}
                file.write(json.dumps({key: value for key, value in fields.items() if value}) + "\n")


def _check_rows(path: Path, rows: list[Row]) -> None:
    """Refuse what could not be read back."""
    splits = {split for _, _, split in rows}
    check_expressible(path, dict.fromkeys(label for _, labels, _ in rows for label in labels), splits)
    if not rows:
        raise VitreousError(f"{path}: no images to list; nothing was written")
    if "" in splits and len(splits) > 1:
        raise VitreousError(f"{path}: some images have a split and some have none; a manifest cannot say that")
    for name, times in Counter(name for name, _, _ in rows).items():
        if not name.strip() or _NO_FILE_NAME.search(name):
            raise VitreousError(f"{path}: the path {name!a} cannot stand in a manifest; rename the file")
        if times > 1:
            raise VitreousError(f"{path}: {name!a} would stand there twice; list each file once")


def relative_path(path: str, base: Path) -> str:
    """As a manifest in the folder `base` names a file."""
    try:
        return Path(os.path.relpath(path, base)).as_posix()
    except ValueError:  # another drive, on Windows
        return Path(path).as_posix()


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv")


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","
