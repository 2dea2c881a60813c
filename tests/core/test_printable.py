"""Names that would move the cursor, colour the line or begin a new one are shown as escapes, in every message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vitreous
from vitreous.classifier import Classifier
from vitreous.cli import main
from vitreous.core.printable import printable, printable_lines
from vitreous.core.progress import progress_bar, say
from vitreous.weights.checkpoint import DOCUMENT

from conftest import random_checkpoint

EVIL = "a\nvitreous: all is well\x1b[2J\u202egpj\x9b1m\x07"
SOURCE = Path(vitreous.__file__).parent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, é, 日本", "plain, é, 日本"),
        ("a\nb\r\t", r"a\nb\r\t"),
        ("\x1b[31m\x7f\x9b", r"\x1b[31m\x7f\x9b"),
        ("\u202egpj\u2066\u2028", r"\u202egpj\u2066\u2028"),
        ("\udcff", r"\xff"),  # a byte of a file name
        ("\ud800", r"\ud800"),
    ],
)
def test_each_kind_of_character(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_other_encodings_and_several_lines() -> None:
    assert printable("é日", "ascii") == r"\xe9\u65e5"
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"


def harmless(text: str, lines: int | None = None) -> None:
    bad = [c for c in text if not c.isprintable() and c != "\n"]
    assert not bad, bad
    assert lines is None or text.count("\n") == lines, text


def test_convert_and_errors_print_no_name_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Classifier(random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3)).save(tmp_path / "c")
    fields = json.loads((tmp_path / "c" / DOCUMENT).read_text())
    fields["architecture"]["name"] = EVIL
    (tmp_path / "c" / DOCUMENT).write_text(json.dumps(fields))
    assert main(["convert", str(tmp_path / "c"), str(tmp_path / EVIL)]) == 0
    captured = capsys.readouterr()
    harmless(captured.out, 1)
    assert r"\x1b[2J" in captured.out
    harmless(captured.err)
    assert main(["convert", str(tmp_path / "c"), str(tmp_path / "json"), "--json"]) == 0
    text = capsys.readouterr().out
    harmless(text, 1)
    assert json.loads(text)["model"] == EVIL
    for missing in (str(tmp_path / f"{EVIL}.npz"), EVIL):
        assert main(["convert", missing, str(tmp_path / "out")]) == 2
        harmless(capsys.readouterr().err, 1)
    assert main([EVIL]) == 2
    harmless(capsys.readouterr().err, 1)


def test_progress_lines_and_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(EVIL)
    with progress_bar(EVIL, 3) as advance:
        advance(3)
    harmless(capsys.readouterr().err, 3)
    (tmp_path / EVIL.replace("\n", " ")).mkdir()
    assert main(["doctor", str(tmp_path / EVIL.replace("\n", " ")), "--out", str(tmp_path / "d")]) == 2
    captured = capsys.readouterr()
    harmless(captured.err + captured.out)


def test_stderr_is_written_to_in_few_places() -> None:
    """Everything else goes through `progress.say` or an error."""
    found = {p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py") if "file=sys.stderr" in p.read_text()}
    assert found <= {"cli.py", "core/progress.py", "inference/throughput.py"}
