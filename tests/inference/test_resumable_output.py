"""--out: killed at any moment and started again, the file is what an uninterrupted run writes; of several processes too."""

from __future__ import annotations

import csv
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import vitreous
from predicting import command, make_image, photographs, small_checkpoint, together, wait_for_bytes
from vitreous.cli import main
from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.inference.image_list import NamedImage
from vitreous.inference.resumable_output import RowFile, about_path, merge, part_path
from vitreous.inference.rows import Row, writing

ABOUT = {"weights": "abc", "top": 2}


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return small_checkpoint(tmp_path)


def run(checkpoint: str, images: list[str], out: Path, **options: Any) -> Any:
    """One image at a time, unless asked: in another batch the last digits of an image's probabilities are others."""
    with silence():
        return vitreous.predict(checkpoint, images, out=str(out), **{"workers": 0, "batch_size": 1, **options})


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_cut_anywhere_and_resumed_it_is_the_same_file(checkpoint: str, tmp_path: Path, ending: str) -> None:
    names = photographs(tmp_path / "photos", 9)
    names[3:3] = [str(tmp_path / "none.jpg"), str(make_image(tmp_path / 'two\nlines, "quoted".png'))]
    whole = run(checkpoint, names, tmp_path / f"whole.{ending}")
    assert (whole.count, whole.errors, whole.already, whole.exit_code) == (11, 1, False, 0)
    expected = (tmp_path / f"whole.{ending}").read_bytes()
    out = tmp_path / f"rows.{ending}"
    run(checkpoint, names, out)
    about = json.loads(about_path(out).read_text())
    unfinished = json.dumps(
        {key: value for key, value in about.items() if key not in ("rows", "bytes", "errors")} | {"done": False}
    )
    for length in sorted({0, 1, len(expected) - 1, *range(5, len(expected), max(1, len(expected) // 13))}):
        out.write_bytes(expected[:length])
        about_path(out).write_text(unfinished)
        again = run(checkpoint, names, out)
        assert out.read_bytes() == expected, length
        assert (again.count, again.errors) == (11, 1)
    assert [row.path for row in again.rows] == names
    printed = vitreous.predict(checkpoint, names, batch_size=1).rows
    assert [(row.classes, row.probabilities, row.error) for row in again] == [
        (row.classes, row.probabilities, row.error) for row in printed
    ]


def test_only_what_is_missing_is_predicted(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.data.transforms.parse import Preprocess

    names, out, decoded = photographs(tmp_path / "photos", 30), tmp_path / "rows.jsonl", []
    going = Preprocess.transform

    def watched(self: Preprocess, image: Any, *more: Any, **options: Any) -> Any:
        decoded.append(image)
        if len(decoded) == 20:
            raise KeyboardInterrupt
        return going(self, image, *more, **options)

    monkeypatch.setattr(Preprocess, "transform", watched)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint, names, out, batch_size=4)
    there = [json.loads(line)["path"] for line in out.read_text().splitlines()]
    assert there == names[:16]  # the batches that were whole
    decoded[:] = [""] * 100
    run(checkpoint, names, out)
    assert decoded[100:] == names[16:]
    assert [json.loads(line)["path"] for line in out.read_text().splitlines()] == names


def test_a_finished_file_says_so_and_is_left_alone(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, out = photographs(tmp_path / "photos", 3), tmp_path / "new" / "rows.jsonl"
    words = ["predict", checkpoint, *names, "--out", str(out)]
    assert main(words) == 0
    assert "3 images" in capsys.readouterr().out
    before, time = out.read_bytes(), out.stat().st_mtime_ns
    assert main(words) == 0
    assert "finished before" in capsys.readouterr().out
    assert (out.read_bytes(), out.stat().st_mtime_ns) == (before, time)
    assert main([*words, "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row.pop("preprocess") for row in shown} == {"resize(32,bicubic)|range(-1,1)"}  # the file's rows need not repeat it
    assert shown == [json.loads(line) for line in before.splitlines()]
    out.write_bytes(before + b"{}\n")
    assert main(words) == 2
    assert "was changed since" in capsys.readouterr().err


def test_a_file_of_another_command_is_refused_with_the_difference(checkpoint: str, tmp_path: Path) -> None:
    names, out = photographs(tmp_path / "photos", 4), tmp_path / "rows.jsonl"
    run(checkpoint, names, out, top=2)
    before = out.read_bytes()
    (tmp_path / "other").mkdir()
    other = small_checkpoint(tmp_path / "other", 48)
    for call, why in (
        (lambda: run(checkpoint, names, out, top=1), "top: 2 there, 1 now"),
        (lambda: run(checkpoint, names[:3], out, top=2), "images: "),
        (lambda: run(other, names, out, top=2), "weights: "),
        (lambda: run(checkpoint, names, out, top=2, image_size=(48, 48)), "image_size: [32, 32] there, [48, 48] now"),
        (lambda: run(checkpoint, names, out, top=2, precision="bfloat16"), "precision"),
    ):
        with pytest.raises(VitreousError, match=why.replace("[", r"\[")):
            call()
    moved = tmp_path / "moved"
    (tmp_path / "c").rename(moved)
    assert run(str(moved), names, out, top=2).already  # equal weights in another place
    assert out.read_bytes() == before


def test_files_that_are_not_ours_are_left_alone(checkpoint: str, tmp_path: Path) -> None:
    names = photographs(tmp_path / "photos", 2)
    theirs = tmp_path / "theirs.csv"
    theirs.write_text("a,b\n1,2\n")
    with pytest.raises(VitreousError, match="is there already"):
        run(checkpoint, names, theirs)
    assert theirs.read_text() == "a,b\n1,2\n"
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(VitreousError, match="is a folder"):
        run(checkpoint, names, tmp_path / "folder.csv")
    with pytest.raises(VitreousError, match="cannot write"):
        run(checkpoint, names, Path(names[0]) / "rows.csv")
    assert not about_path(theirs).exists()


def test_images_that_changed_in_between_are_refused(tmp_path: Path) -> None:
    way, path = writing("jsonl", 1), tmp_path / "rows.jsonl"
    with RowFile(path, way, ABOUT) as file:
        file.resume(iter(()))
        file.write([Row("a", ("x",), (1.0,)), Row("b", error="bad")])
    for images, why in ((["a", "c"], "'b', and it is 'c' now"), (["a"], "there is none now")):
        with pytest.raises(VitreousError, match=why), RowFile(path, way, ABOUT) as file:
            file.resume(iter(map(NamedImage, images)))
    rest = iter(map(NamedImage, ["a", "b", "c"]))
    with RowFile(path, way, ABOUT) as file:
        file.resume(rest)
        assert (file.rows, file.errors) == (2, 1)
    assert [named.path for named in rest] == ["c"]
    path.write_text('{"path": "a"}\n' + '{"path": "b", "error": "bad"}\n')
    with pytest.raises(VitreousError, match="row 1 cannot be read"), RowFile(path, way, ABOUT) as file:
        file.resume(iter(map(NamedImage, "ab")))


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_two_at_once_are_refused(tmp_path: Path) -> None:
    way, path = writing("jsonl", 1), tmp_path / "rows.jsonl"
    with RowFile(path, way, ABOUT) as file:
        file.resume(iter(()))
        file.write([Row("a", ("x",), (1.0,))])
        with pytest.raises(VitreousError, match="just now"), RowFile(path, way, ABOUT):
            pass
        file.write([Row("b", ("x",), (1.0,))])
    assert path.read_text().count("\n") == 2


def test_a_signal_between_two_halves_of_a_row_leaves_whole_rows(tmp_path: Path) -> None:
    way, path = writing("jsonl", 1), tmp_path / "rows.jsonl"

    def interrupted() -> None:
        with RowFile(path, way, ABOUT) as file:
            file.resume(iter(()))
            file.write([Row("a", ("x",), (1.0,))])
            assert file._file is not None
            file._file.write(b'{"path": "b", "cla')
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == way.line(Row("a", ("x",), (1.0,)))


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_parts_are_put_together_in_order(tmp_path: Path, ending: Any) -> None:
    way, out = writing(ending, 1), tmp_path / f"rows.{ending}"
    rows = [Row(f"{n}\n.jpg", ("x",), (n / 16,)) if n % 4 else Row(f"{n}\n.jpg", error="bad") for n in range(11)]
    for process in range(3):
        with RowFile(part_path(out, process, 3), way, ABOUT) as file:
            file.resume(iter(()))
            file.write(rows[process::3])
            file.finish()
    assert merge(out, way, ABOUT, 3) == (11, 3)
    assert out.read_bytes().decode() == way.head + "".join(map(way.line, rows))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, about_path(out).name])
    with RowFile(part_path(out, 0, 3), way, ABOUT) as file:
        file.finish()
    with pytest.raises(VitreousError, match="part-1-of-3: is not here"):
        merge(out, way, ABOUT, 3)


# Whole processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.usefixtures("interruptible")
def test_kills_and_signals_lose_nothing_and_repeat_nothing(checkpoint: str, tmp_path: Path) -> None:
    names = photographs(tmp_path / "photos", 30)
    listed, out = tmp_path / "photos", tmp_path / "rows.jsonl"
    words = [checkpoint, *[str(listed)] * 200, "--out", str(out), "--batch-size", "8", "--workers", "1"]
    size = 0
    for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)):
        child = command(tmp_path, *words)
        assert wait_for_bytes(out, size + 2000, child), child.ended()
        found, _, said = child.kill(number)
        assert found == code
        assert "Traceback" not in said
        text = out.read_bytes()
        size = len(text)
        if number != signal.SIGKILL:
            assert text.endswith(b"\n")
            assert "the same command resumes" in said
    found, told, said = command(tmp_path, *words).ended()
    assert found == 0, said
    assert "resuming after row" in said
    assert f"{200 * 30:,} images" in told
    assert [json.loads(line)["path"] for line in out.read_text().splitlines()] == names * 200


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_two_processes_share_the_list(checkpoint: str, tmp_path: Path) -> None:
    names = photographs(tmp_path / "photos", 29)
    names[3:3] = [str(tmp_path / "none.jpg")]
    out, text = tmp_path / "rows.csv", tmp_path / "names.txt"
    text.write_text("\n".join(names))
    words = [checkpoint, *names, "--out", str(out), "--batch-size", "4", "--workers", "0"]
    expected = {row.path: row for row in vitreous.predict(checkpoint, names, batch_size=4).rows}
    for _ in range(2):  # the second time all is done
        ended = [child.ended() for child in together(tmp_path, *words)]
        assert [code for code, _, _ in ended] == [0, 0], ended
        assert "30 images, of which 1 could not be read" in ended[0][1]
        assert ended[1][1:] == ("", "")  # the first one speaks
    with out.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [row["path"] for row in table] == names
    for row in table:
        assert row["class1"] == (expected[row["path"]].classes or ("",))[0]
    assert sorted(path.name for path in tmp_path.glob("rows*")) == ["rows.csv", "rows.csv.about.json"]
    # Printed, and gone on with by another number of processes
    printed = [child.ended() for child in together(tmp_path, checkpoint, *names, "--json", "--workers", "0")]
    assert [json.loads(line)["path"] for line in printed[0][1].splitlines()] == names
    assert printed[1] == (0, "", "")
    part_path(out, 0, 3).write_text("")
    with pytest.raises(VitreousError, match="was begun with 3 processes and now there is 1"):
        run(checkpoint, names, out)


def test_of_two_commands_that_begin_at_once_one_writes(tmp_path: Path) -> None:
    """Both find nothing and go on; the second must not say whose the first one's rows are."""
    out = tmp_path / "rows.jsonl"
    first, second = (RowFile(out, writing("jsonl", 2), about) for about in (ABOUT, {**ABOUT, "weights": "other"}))
    with first:
        with pytest.raises(VitreousError, match="another process is writing"), second:
            pass
        assert json.loads(about_path(out).read_text())["weights"] == "abc"
    with pytest.raises(VitreousError, match="weights"), second:
        pass
    assert json.loads(about_path(out).read_text())["weights"] == "abc"


def test_killed_before_it_said_what_it_writes(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    out.touch()
    with RowFile(out, writing("jsonl", 2), ABOUT):
        assert json.loads(about_path(out).read_text())["weights"] == "abc"
    strange = tmp_path / "mine.jsonl"
    strange.write_text("somebody's\n")
    with pytest.raises(VitreousError, match="is there already"):
        RowFile(strange, writing("jsonl", 2), ABOUT)
