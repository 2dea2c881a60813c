"""What is written as a manifest can be read as one, and gives the same; what could not be is refused, and leaves nothing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from vitreous.core.errors import VitreousError
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.sources.manifest import Row, write_manifest

ROWS: list[Row] = [
    ("a/1.jpg", ("cat",), "train"),
    ('b, "c"\n.jpg', ("dog", "cat"), "validation"),
    (" spaces .jpg", (), "test"),
    ("x\udcff\ttab.jpg", ("a cat, 'fät'",), "test"),
]


def read(path: Path) -> list[Row]:
    found: list[Row] = []
    for split, source in open_data(path).splits.items():
        assert isinstance(source, Source)
        for i in range(len(source)):
            found.append((source.id(i), tuple(source.classes[label] for label in source.labels(i)), split))
    return found


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".ndjson", ".CSV"])
def test_what_is_written_is_read_again(tmp_path: Path, ending: str) -> None:
    target = tmp_path / "new" / f"list{ending}"
    write_manifest(target, iter(ROWS))
    assert read(target) == ROWS
    unsplit = [(name, labels, "all") for name, labels, _ in ROWS]
    write_manifest(target, [(name, labels, "") for name, labels, _ in ROWS])
    assert read(target) == unsplit
    first = target.read_bytes()
    write_manifest(target, unsplit)
    assert target.read_bytes() == first
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    write_manifest(tmp_path / "a.csv", ROWS[:3])
    with (tmp_path / "a.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"path": name, "label": ";".join(labels), "split": split} for name, labels, split in ROWS[:3]
        ]
    write_manifest(tmp_path / "a.jsonl", ROWS)
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("ascii").splitlines()][1:3] == [
        {"path": 'b, "c"\n.jpg', "label": ["dog", "cat"], "split": "validation"},
        {"path": " spaces .jpg", "split": "test"},
    ]


@pytest.mark.parametrize(
    ("name", "row", "told"),
    [
        ("a.csv", ("1.jpg", ("a;b",), "train"), "use .jsonl"),
        ("a.csv", ("1.jpg", ("cat", " dog"), "train"), "' dog' cannot stand in .csv"),
        ("a.csv", ("1.jpg", ("\udcff",), "train"), "is not text"),
        ("a.jsonl", ("1.jpg", ("\ud800",), "train"), "is not text"),
        ("a.jsonl", ("1.jpg", ("",), "train"), "is not text"),
        ("a.jsonl", ("\ud800.jpg", ("cat",), "train"), "rename the file"),
        ("a.csv", ("1.jpg", ("cat",), "extra"), "'extra'.*train, validation, test"),
        ("a.csv", ("1.jpg", ("cat",), ""), "some have none"),
        ("a.csv", ("0.jpg", ("cat",), "train"), "twice"),
        ("a.jsonl", (" ", ("cat",), "train"), "rename"),
        ("a.txt", ("1.jpg", ("cat",), "train"), "must end in"),
    ],
)
def test_what_cannot_be_expressed_is_refused_and_nothing_is_written(tmp_path: Path, name: str, row: Row, told: str) -> None:
    with pytest.raises(VitreousError, match=told) as error:
        write_manifest(tmp_path / name, [("0.jpg", ("cat",), "train"), row])
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(VitreousError, match=r"no images to list|must end"):
        write_manifest(tmp_path / name, [])


def test_labels_that_csv_cannot_hold_fit_into_json(tmp_path: Path) -> None:
    rows: list[Row] = [("1.jpg", ("a;b",), "all"), ("2.jpg", (" x ", "y"), "all")]
    write_manifest(tmp_path / "a.jsonl", rows)
    assert read(tmp_path / "a.jsonl") == rows
