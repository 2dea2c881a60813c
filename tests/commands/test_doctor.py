"""The command: exit codes, what it prints and writes, and errors on one line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous.cli as cli
from vitreous.commands.doctor import doctor
from vitreous.data.open import open_data
from vitreous.data.shards.writer import write_shards


def make(root: Path, places: dict[str, int], count: int = 3) -> Path:
    for place, seed in places.items():
        (root / place).mkdir(parents=True)
        for number in range(count):
            coarse = np.random.default_rng(seed + number).integers(0, 256, (9, 12, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((96, 72), Image.Resampling.BICUBIC).save(root / place / f"{number}.png")
    return root


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make(tmp_path / "data", {"train/cat": 0, "train/dog": 100, "test/cat": 200, "test/dog": 300})


SMALL = ["--preprocess", "resize(64)|range(-1,1)", "--workers", "0"]


def test_sound_data(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "data", "--out", "report", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "No problems found." in printed
    assert str(Path("report/report.html")) in printed
    assert sorted(path.name for path in Path("report").iterdir()) == ["findings.jsonl", "report.html", "summary.json"]
    assert Path("report/findings.jsonl").read_text() == ""
    summary = json.loads(Path("report/summary.json").read_text())
    assert (summary["images"], summary["corrupt"], summary["findings"]) == (12, False, {})
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_bad_news_is_exit_code_1_and_advice_is_not(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("data/train/cat/0.png", "data/train/cat/again.png")
    assert cli.main(["doctor", "data", "--out", "report", *SMALL]) == 0
    assert "- duplicate [train] train/cat/0.png, train/cat/again.png" in capsys.readouterr().out
    shutil.copy("data/train/cat/0.png", "data/test/cat/leak.png")
    assert cli.main(["doctor", "data", "--out", "report", *SMALL, "--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [json.loads(line) for line in Path("report/findings.jsonl").read_text().splitlines()]
    assert [{key: line[key] for key in ("kind", "paths", "split")} for line in lines] == [
        {
            "kind": "duplicate",
            "paths": ["train/cat/0.png", "train/cat/again.png", "test/cat/leak.png"],
            "split": "train,test",
        }
    ]
    assert "byte for byte" in lines[0]["detail"]
    assert json.loads(Path("report/summary.json").read_text())["corrupting"] == {"duplicate": 1}


def test_fix(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("data/train/cat/0.png", "data/test/cat/leak.png")
    Path("data/train/dog/bad.jpg").write_bytes(b"")
    assert cli.main(["doctor", "data", "--out", "report", "--fix", "clean.csv", *SMALL]) == 1
    printed = capsys.readouterr().out
    assert "clean.csv: 12 images kept, 2 left out (duplicates of another split: 1, bad files: 1)" in printed
    assert cli.main(["doctor", "clean.csv", "--out", "again", *SMALL]) == 0
    assert Path("clean.csv").read_text().splitlines()[0] == "path,label,split"


def test_a_flat_folder_and_one_with_classes_only(data: Path) -> None:
    for name in ("data/train", "data/train/cat"):
        result = doctor(name, out="report", workers=0, preprocess="resize(64)")
        assert (result.exit_code, result.findings) == (0, ())
    assert doctor("data/train/cat", out="report", workers=0).summary["splits"]["all"]["images"] == 3


def test_against(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(Path("tests"), {"x": 101}, count=2)  # the second and third dog
    Path("tests/x/broken.png").write_bytes(b"x")
    assert cli.main(["doctor", "data", "--against", "tests", "--out", "report", "--fix", "clean.jsonl", *SMALL]) == 1
    printed = capsys.readouterr()
    assert "tests: 1 images could not be read" in printed.err
    assert "10 images kept, 2 left out (in the data compared with: 2)" in printed.out
    kept = {json.loads(line)["path"] for line in Path("clean.jsonl").read_text().splitlines()}
    assert not kept & {"data/train/dog/1.png", "data/train/dog/2.png"}
    assert "data/train/dog/0.png" in kept


def test_notes_of_both_are_reported_each_with_its_name(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.csv").write_text("path,label,mood\ndata/train/cat/0.png,cat,merry\n")
    Path("two.csv").write_text("path,label,weight\ndata/test/dog/0.png,dog,3\n")
    make(Path("odd"), {"a": 5}, count=1)
    Path("odd/a/notes.txt").write_text("x")
    result = doctor("one.csv", against="two.csv", out="report", workers=0)
    assert [note.split(":")[0] for note in result.notes] == ["one.csv", "one.csv", "two.csv", "two.csv"]
    assert result.notes[0] == "one.csv: 1 class (cat); all: 1 image"
    result = doctor("odd", against="odd", out="report", workers=0, near=False)
    assert [finding.kind for finding in result.findings if not finding.corrupts] == ["left-out", "upscaled"]
    assert ["a/notes.txt" in note for note in result.notes] == [False, False, True]  # of the data itself it is a finding


def test_one_split_of_the_other(data: Path) -> None:
    shutil.copy("data/test/cat/0.png", "leak.png")
    Path("one.csv").write_text("path,label\nleak.png,cat\ndata/train/cat/1.png,cat\n")
    result = doctor("one.csv", against="data:test", out="report", workers=0)
    assert [(f.kind, f.splits) for f in result.findings if f.corrupts] == [("duplicate", ("all", "against:test"))]


@pytest.mark.parametrize("indexed", [True, False])
def test_a_broken_shard_is_named_and_the_rest_examined(data: Path, tmp_path: Path, indexed: bool) -> None:
    shards = tmp_path / "shards"
    write_shards(open_data(data), shards, shard_bytes=1)  # one image each
    if not indexed:
        (shards / "index.json").unlink()
    whole = doctor(str(shards), str(tmp_path / "before"), workers=0, near=False)
    assert not any(finding.kind == "broken-shard" for finding in whole.findings)
    (broken, *_) = sorted(shards.glob("train-*.tar"))
    broken.write_bytes(broken.read_bytes()[:700])
    for workers in (0, 2):
        found = doctor(str(shards), str(tmp_path / "after"), workers=workers, near=False)
        assert found.exit_code == 1
        (finding,) = [finding for finding in found.findings if finding.kind == "broken-shard"]
        assert broken.name in finding.detail
        assert "fetch or make this shard again" in finding.detail
        assert found.summary["images"] == whole.summary["images"] - 1


def test_nothing_is_left(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in data.rglob("*.png"):
        path.write_bytes(b"")
    assert cli.main(["doctor", "data", "--out", "report", "--fix", "clean.csv", *SMALL]) == 1
    assert "clean.csv: not written, because nothing is left" in capsys.readouterr().out
    assert not Path("clean.csv").exists()
    assert Path("report/report.html").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere/", "--out", "report"], "no such file or folder"),
        (["data", "--out", "data/report"], "inside the data"),
        (["data", "--out", "mine"], "holds other files"),
        (["data", "--out", "report", "--fix", "x.txt"], "must end in .csv"),
        (["data", "--out", "report", "--fix", "mine/thesis.txt"], "exists already"),
        (["data", "--out", "report", "--fix", "list.csv"], "exists already"),
        (["list.csv", "--out", "report", "--fix", "list.csv"], "own manifest"),
        (["data", "--against", "list.csv", "--out", "report", "--fix", "list.csv"], "own manifest"),
        (["odd", "--out", "report", "--fix", "x.csv"], "class name 'a;b' cannot stand in .csv; use .jsonl"),
        (["data", "--out", "report", "--fix", "list.csv/x.csv"], "is not a folder"),
        (["data", "--out", "list.csv/report"], "is not a folder"),
        (["data:train", "--out", "data/report"], "inside the data"),
        (["odd", "--against", "data", "--out", "data/report"], "inside the data"),
        (["data", "--out", "report", "--fix", "report/x.csv"], "every run replaces"),
        (["data", "--out", "report", "--preprocess", "resiz(3)"], "did you mean 'resize'"),
        (["data", "--out", "report", "--workers", "-2"], "--workers -2"),
        (["data", "--out", "report", "--against", "nowhere/"], "no such file or folder"),
        (["empty", "--out", "report"], "no images found"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    data: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("x")
    Path("empty").mkdir()
    make(Path("odd"), {"a;b": 5}, count=1)
    Path("list.csv").write_text("path,label\ndata/train/cat/0.png,cat\n")
    before = sorted(Path().rglob("*"))
    assert cli.main(["doctor", *words]) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1
    assert told in printed[0]
    assert [path for path in sorted(Path().rglob("*")) if "cache" not in path.parts] == before


def test_odd_names_on_the_terminal(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (b"a\x1b[31m.jpg", b"b\nc.jpg", b"d\xff.jpg", b"[bold]e.jpg"):
        Path(os.fsdecode(b"data/train/cat/" + name)).write_bytes(b"")
    assert doctor("data", out="report", workers=0, near=False).exit_code == 1
    assert cli.main(["doctor", "data", "--out", "report", "--no-near", *SMALL]) == 1
    printed = capsys.readouterr().out
    for shown in (r"a\x1b[31m.jpg", r"b\nc.jpg", r"d\xff.jpg", "[bold]e.jpg"):
        assert f"train/cat/{shown}: an empty file" in printed
    printed.encode("utf-8")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
def test_a_killed_run_leaves_nothing_under_the_final_name(data: Path) -> None:
    program = """
import pathlib, sys, time
from vitreous.commands.doctor import doctor
real = pathlib.Path.write_text
def slow(self, *args, **options):
    done = real(self, *args, **options)
    if self.name == "summary.json":
        print("writing", flush=True)
        time.sleep(60)
    return done
pathlib.Path.write_text = slow
doctor("data", out="report", fix="clean.csv", workers=0, near=False)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "writing"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not Path("report").exists()
    assert not Path("clean.csv").exists()
    assert doctor("data", out="report", fix="clean.csv", workers=0, near=False).exit_code == 0
    assert Path("report/report.html").exists()


def test_the_same_data_give_the_same_bytes(data: Path) -> None:
    shutil.copy("data/train/cat/0.png", "data/test/cat/leak.png")
    written = []
    for workers in (0, 2):
        doctor("data", out="report", workers=workers)
        written.append({path.name: path.read_bytes() for path in Path("report").iterdir()})
        time.sleep(0.01)
    assert written[0] == written[1]
