"""`vitreous shard`, from a folder to shards; killed halfway too. And the progress that it and other verbs show."""

from __future__ import annotations

import inspect
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.commands.shard import shard
from vitreous.core import progress
from vitreous.core.errors import VitreousError
from vitreous.data.shards.reader import open_shards


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 3)):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for n in range(count):
                pixels = random.integers(0, 256, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / split / name / f"{n}.png")
    return tmp_path / "photos"


def test_a_folder_becomes_shards(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = shard(str(photos), str(tmp_path / "out"), shard_size="6kB")
    assert result.exit_code == 0
    rows = list(result.records())
    assert [(row["split"], row["images"]) for row in rows] == [("train", 16), ("validation", 6)]
    assert rows[0]["shards"] > 1
    assert all(len(line) < 200 for line in result.text().splitlines())
    json.dumps(rows)
    assert "22 to do" in capsys.readouterr().err
    dataset = open_shards(result.out)
    assert dataset.classes == ("cat", "dog")
    for split, directory in (("train", "train"), ("validation", "val")):
        stored = {(item.labels, item.content) for item in dataset.splits[split].items()}
        files = {
            ((index,), path.read_bytes())
            for index, name in enumerate(("cat", "dog"))
            for path in (photos / directory / name).iterdir()
        }
        assert stored == files


def test_a_place_that_is_taken_is_refused_before_anything_is_read(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(VitreousError, match="photos: is there already"):
        shard("no/such/data", str(photos))
    assert capsys.readouterr().err == ""
    assert len(list(photos.rglob("*.png"))) == 22


def test_bad_images(photos: Path, tmp_path: Path) -> None:
    (photos / "train" / "cat" / "0.png").write_bytes(b"")
    (photos / "val" / "dog" / "1.png").write_text("not an image")
    with pytest.raises(VitreousError, match=r"2 bad images.*0\.png.*1\.png.*--bad-images skip"):
        shard(str(photos), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    result = shard(str(photos), str(tmp_path / "out"), bad_images="skip")
    assert len(result.bad) == 2
    assert any("bad_images.jsonl" in note for note in result.notes)
    assert len((tmp_path / "out" / "bad_images.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(("text", "size"), [("256MB", 256_000_000), ("1GiB", 1 << 30), ("1.5 kb", 1500), ("7", 7), ("2B", 2)])
def test_sizes(text: str, size: int) -> None:
    from vitreous.commands.shard import _bytes

    assert _bytes(text) == size


@pytest.mark.parametrize("text", ["", "big", "0", "-1MB", "1XB", "1e3", "0.1B", "MB"])
def test_sizes_that_are_none(text: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="--shard-size"):
        shard(str(photos), str(tmp_path / "out"), shard_size=text)
    assert not (tmp_path / "out").exists()


def test_help_has_an_example_and_every_argument() -> None:
    text = inspect.getdoc(shard) or ""
    assert "Example: vitreous shard" in text
    assert all(f"{name}:" in text for name in inspect.signature(shard).parameters if name != "bad_images")  # has its own help


KILLED = """
import sys, time
from vitreous.data.shards import writer as shard_writer
from vitreous.commands.shard import shard
add, count = shard_writer._ShardWriter.add, 0
def slow(self, *rest):
    global count
    add(self, *rest)
    count += 1
    if count == 12:
        print("half", flush=True)
        time.sleep(60)
shard_writer._ShardWriter.add = slow
shard(sys.argv[1], sys.argv[2], shard_size="6kB")
"""


COMMAND = 'from vitreous.cli import main; sys.argv[1:] = ["shard", *sys.argv[1:], "--shard-size", "6kB"]; sys.exit(main())'
ASKED = KILLED.replace('shard(sys.argv[1], sys.argv[2], shard_size="6kB")', COMMAND)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_halfway_it_leaves_nothing_under_the_name_and_can_be_run_again(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "out"
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(photos), str(out)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    written = list((tmp_path / "made").rglob("*.tar"))
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert written
    assert not out.exists()
    result = shard(str(photos), str(out), shard_size="6kB")
    assert sum(entry.count for entry in result.shards) == 22
    assert any("killed" in note for note in result.notes)
    assert shard(str(photos), str(tmp_path / "fresh"), shard_size="6kB").shards == result.shards
    for path in out.iterdir():
        assert path.read_bytes() == (tmp_path / "fresh" / path.name).read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_asked_to_end_it_cleans_up(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "out"
    child = subprocess.Popen([sys.executable, "-c", ASKED, str(photos), str(out)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    assert list((tmp_path / "made").iterdir()) != []
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 143
    child.stdout.close()
    assert list((tmp_path / "made").iterdir()) == []


# Progress -------------------------------------------------------------------------------------------------------------------


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 1.0, 11.0, 12.0, 22.0, 30.5))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.progress_bar("reading x", 4) as advance:
        for _ in range(4):
            advance(1)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "reading x: 4 to do",
        "reading x: 2 of 4 (50%)",
        "reading x: 4 of 4 (100%)",
        "reading x: 4 of 4 done in 30.5 s",
    ]


def test_nothing_at_all_when_silenced_and_no_last_line_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.silence(), progress.progress_bar("x", 2) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")
    with progress.silence(False), progress.progress_bar("x", None) as advance:
        advance(2)
    assert [line.partition(" in ")[0] for line in capsys.readouterr().err.splitlines()] == ["x: started", "x: 2 done"]
    with pytest.raises(ValueError, match="stop"), progress.progress_bar("x", 2):
        raise ValueError("stop")
    assert capsys.readouterr().err == "x: 2 to do\n"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress_bar("reading [red]x", 3) as advance:
        advance(1)
        advance(2)
    assert "reading [red]x" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()
