"""The one reader of untrusted JSON; and that there is no other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitreous
from vitreous.core.errors import VitreousError
from vitreous.core.untrusted_json import DEPTH, parse_json, read_json
from vitreous.data.datasets.real_labels import read_real_labels
from vitreous.data.shards.index import _read_index
from vitreous.data.sources.manifest import open_manifest
from vitreous.inference.rows import writing
from vitreous.serving.run_metrics import record_of
from vitreous.studies.rows import _read_row
from vitreous.training.run_folder import read_config
from vitreous.training.state import _checked
from vitreous.weights.arrays import read_shard_index
from vitreous.weights.checkpoint import read_document
from vitreous.weights.read import read_path

SOURCE = Path(vitreous.__file__).parent


def nested(depth: int, inside: str = "1") -> str:
    return "[" * depth + inside + "]" * depth


@pytest.mark.parametrize("text", [nested(DEPTH), json.dumps({"a": [1, {"b": None}]}), '"[[[["', "1e400", nested(0)])
def test_what_is_json_is_read_as_python_reads_it(text: str, tmp_path: Path) -> None:
    assert parse_json(text) == json.loads(text)
    (tmp_path / "x.json").write_text(text)
    assert read_json(tmp_path / "x.json") == json.loads(text)


@pytest.mark.parametrize("depth", [DEPTH + 1, 900, 100_000])
@pytest.mark.parametrize("form", [lambda n: nested(n), lambda n: '{"a":' * n + "1" + "}" * n])
def test_deep_nesting_is_a_value_error(form: Callable[[int], str], depth: int) -> None:
    with pytest.raises(ValueError, match="nested more than 128 deep"):
        parse_json(form(depth))


def test_size_bytes_and_digits_are_limited(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more than 10 bytes"):
        parse_json("[1,2,3,4,5,6]", most=10)
    (tmp_path / "x.json").write_bytes(b" " * 11)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_json(tmp_path / "x.json", most=10)
    (tmp_path / "x.json").write_bytes(b'"\xff"')
    with pytest.raises(ValueError, match="codec"):
        read_json(tmp_path / "x.json")
    with pytest.raises(ValueError, match="digits"):
        parse_json("9" * 5000)


DEEP = nested(100_000)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("model.json", read_document),
        ("config.json", read_config),
        ("model.safetensors.index.json", read_path),
        ("model.safetensors.index.json", read_shard_index),
        ("x.jsonl", open_manifest),
        ("real.json", read_real_labels),
        ("index.json", lambda path: _read_index(str(path))),
        ("row.json", _read_row),
        ("state.json", lambda path: _checked(path.parent)),
        ("metrics.jsonl", lambda path: record_of(path.read_bytes())),
        ("rows.jsonl", lambda path: writing("jsonl", 1).row(path.read_text())),
    ],
)  # fmt: skip
def test_no_reader_is_felled_by_deep_nesting(name: str, read: Callable[[Path], Any], tmp_path: Path) -> None:
    """Our own error, a ValueError where a row is skipped, or nothing read; never a RecursionError."""
    (tmp_path / name).write_text(DEEP)
    try:
        assert not read(tmp_path / name)
    except (VitreousError, ValueError) as error:
        assert "\n" not in str(error)
        assert "recursion" not in str(error)


def test_there_is_no_other_reader() -> None:
    other = re.compile(r"\bjson\.loads?\((?!json\.dumps)|JSONDecoder\(")
    found = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if other.search(path.read_text())}
    assert found == {"core/untrusted_json.py", "data/datasets/clevr.py"}  # CLEVR's scenes, 200 MB, are read one by one
