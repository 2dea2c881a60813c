"""Runs as they are watched: right while they grow, unmoved by what is broken, and nothing outside of the folder is seen."""

from __future__ import annotations

import base64
import functools
import io
import json
import math
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous
from vitreous.core.progress import silence
from vitreous.evaluation.validation_result import Mistake, ValidationResult
from vitreous.reports.series import read_series
from vitreous.serving import run_metrics, runs
from vitreous.serving.http_errors import json_bytes
from vitreous.serving.run_metrics import MetricsReader
from vitreous.serving.runs import RunsFolder, UnknownRun
from vitreous.training.mistakes import write_mistakes

OLD = 1_600_000_000.0


@functools.cache
def watched(folder: Path) -> RunsFolder:
    return RunsFolder(folder)


def listing(folder: Path) -> dict[str, Any]:
    return watched(folder).listing()


def run_view(folder: Path, name: str, after: int = -1) -> dict[str, Any]:
    return watched(folder).view(name, after)


def records(steps: int, every: int = 10, seed: int = 0) -> list[dict[str, Any]]:
    """As the loop writes them: training each step, and an evaluation now and then."""
    noise = np.random.default_rng(seed).normal(size=steps + 1)
    made: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        place = dict(step=step, epoch=step / 8, images=32 * step, seconds=0.25 * step, flops=6000 * step, lr=1e-3 * step)
        made.append({**place, "split": "train", "loss": 2 / step + abs(noise[step]), "images_per_second": 64.0, "top1": 0.5})
        if step % every == 0:
            made.append({**place, "split": "validation", "loss": 2.1 / step, "top1": 1 - 1 / step, "top5": 1.0, "n": 50})
    return made


def lines(made: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in made).encode()


CONFIG = {"verb": "pretrain", "model": {"name": "ViT-Ti/2"}, "data": {"name": "builtin:digits"}, "recipe": {"steps": 40}}


def run(path: Path, content: bytes = b"", config: Any = CONFIG, changed: float | None = OLD, done: bool = False) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "metrics.jsonl").write_bytes(content)
    if done:
        (path / "state").mkdir()
        (path / "state" / "done.json").write_text('{"steps": 40}')
    if changed is not None:
        os.utime(path / "metrics.jsonl", (changed, changed))
    return path


def curve(view: dict[str, Any], key: str, split: str, what: str = "points") -> list[list[Any]]:
    found = [one[what] for one in view["series"] if (one["key"], one["split"]) == (key, split)]
    assert len(found) <= 1
    return found[0] if found else []


def names(folder: Path) -> list[str]:
    return [one["name"] for one in listing(folder)["runs"]]


# The list ---------------------------------------------------------------------------------------------------------------------


def test_every_run_below_the_folder_is_found_and_nothing_else(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "runs", run(tmp_path / "elsewhere")
    run(folder / "a", changed=OLD + 3)
    run(folder / "a" / "sweep" / "lr-0.1", changed=OLD + 2)
    run(folder / "b" / "c" / "d", changed=OLD + 1)
    run(folder / "b" / "c" / "d" / "e")  # too deep
    run(folder / ".hidden")
    run(folder / "a" / "checkpoint" / "average")  # inside a run, no run
    (folder / "weights").mkdir()
    (folder / "weights" / "config.json").write_text("{}")  # as other programs have them
    (folder / "out").symlink_to(elsewhere, target_is_directory=True)
    (folder / "b" / "circle").symlink_to(folder, target_is_directory=True)
    linked = run(folder / "linked")
    (linked / "config.json").unlink()
    (linked / "config.json").symlink_to(elsewhere / "config.json")
    assert names(folder) == ["a", "a/sweep/lr-0.1", "b/c/d"]
    assert names(tmp_path / "elsewhere") == ["elsewhere"]  # a run may be watched alone
    assert names(tmp_path / "nowhere") == []


def test_the_list_says_how_far_a_run_is(tmp_path: Path) -> None:
    run(tmp_path / "a", lines(records(25)))
    (found,) = listing(tmp_path)["runs"]
    assert found == {
        "name": "a", "state": "stopped", "step": 25, "steps": 40, "seconds": 6.25, "flops": 150_000.0,
        "updated": OLD, "loss": 2.1 / 20,
        "top1": 0.95, "images_per_second": 64.0, "split": "validation", "model": "ViT-Ti/2", "data": "builtin:digits",
        "verb": "pretrain", "majority": None,
    }  # fmt: skip
    (tmp_path / "a" / "state").mkdir(exist_ok=True)
    (tmp_path / "a" / "state" / "done.json").write_text('{"top1": 0.95, "majority": 0.238}')
    assert listing(tmp_path)["runs"][0]["majority"] == 0.238
    run(tmp_path / "b", lines(records(5)), config={"model": "no object", "recipe": {"steps": "many"}})
    found = next(one for one in listing(tmp_path)["runs"] if one["name"] == "b")
    assert (found["loss"], found["split"], found["top1"]) == (records(5)[-1]["loss"], "train", None)
    assert (found["model"], found["data"], found["steps"]) == (None, None, None)


def test_the_last_evaluation_is_found_far_from_the_end(tmp_path: Path) -> None:
    made = records(3000, every=1000)
    path = run(tmp_path / "a", lines(made[:-800]) + b'{"step": 12, "spl')
    (found,) = listing(tmp_path)["runs"]
    assert path.joinpath("metrics.jsonl").stat().st_size > 4 * 65536
    assert (found["step"], found["top1"]) == (made[-801]["step"], 1 - 1 / 2000)


def test_only_the_newest_are_listed_and_the_others_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LISTED", 3)
    for k in range(5):
        run(tmp_path / f"r{k}", changed=OLD + k)
    found = listing(tmp_path)
    assert [one["name"] for one in found["runs"]] == ["r4", "r3", "r2"]
    assert found["left_out"] == 2
    assert run_view(tmp_path, "r0")["name"] == "r0"


def test_a_search_ends_in_a_folder_with_too_much_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ENTRIES", 10)
    for k in range(30):
        (tmp_path / f"{k:02}").mkdir()
    assert listing(tmp_path)["runs"] == []


# States -----------------------------------------------------------------------------------------------------------------------


HOLD = """
import pathlib, sys
from vitreous.core.files import locked
with locked(pathlib.Path(sys.argv[1]), "taken"):
    print("held", flush=True)
    sys.stdin.read()
"""


def state(folder: Path, name: str) -> str:
    return next(one["state"] for one in listing(folder)["runs"] if one["name"] == name)


def test_a_run_is_finished_when_it_says_so_and_running_while_it_changes(tmp_path: Path) -> None:
    run(tmp_path / "finished", changed=None, done=True)
    run(tmp_path / "stopped", changed=time.time() - runs.QUIET - 10)
    run(tmp_path / "running", changed=time.time() - 10)
    run(tmp_path / "tomorrow", changed=time.time() + 86400)
    assert [state(tmp_path, name) for name in ("finished", "stopped", "running", "tomorrow")] == [
        "finished", "stopped", "running", "stopped",
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="locks cannot be asked about here")
def test_a_run_whose_lock_is_held_is_running_however_long_it_says_nothing(tmp_path: Path) -> None:
    path = run(tmp_path / "a")
    (path / "state").mkdir()
    (path / "state" / ".lock").touch()
    assert state(tmp_path, "a") == "stopped"
    command = [sys.executable, "-c", HOLD, str(path / "state" / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert state(tmp_path, "a") == "running"
        assert state(tmp_path, "a") == "running"  # asking did not take it
        holder.communicate()
    assert state(tmp_path, "a") == "stopped"
    os.utime(path / "metrics.jsonl", (time.time() - 60, time.time() - 60))
    assert state(tmp_path, "a") == "stopped"  # nobody is at it, although it changed lately


def test_a_run_that_has_measured_nothing_yet_is_there(tmp_path: Path) -> None:
    path = run(tmp_path / "a")
    (path / "metrics.jsonl").unlink()
    assert listing(tmp_path)["runs"] == []
    (path / "state").mkdir()
    (path / "state" / ".lock").touch()
    assert [(one["name"], one["step"], one["loss"]) for one in listing(tmp_path)["runs"]] == [("a", 0, None)]
    view = run_view(tmp_path, "a")
    assert (view["series"], view["complete"]) == ([], True)


# Curves -----------------------------------------------------------------------------------------------------------------------


def test_curves_are_those_of_the_report(tmp_path: Path) -> None:
    made = records(200)
    run(tmp_path / "a", lines(made))
    view = run_view(tmp_path, "a")
    assert {(one["key"], one["split"]) for one in view["series"]} == {
        *((key, "all") for key in ("epoch", "images", "seconds", "flops", "lr")),
        *((key, "train") for key in ("loss", "top1", "images_per_second")),
        *((key, "validation") for key in ("loss", "top1", "top5")),
    }
    for one in view["series"]:
        steps, values = read_series(made, one["key"], None if one["split"] == "all" else one["split"])
        np.testing.assert_array_equal([point[0] for point in one["points"]], steps)
        np.testing.assert_allclose([point[1] for point in one["points"]], values, rtol=1e-5)
        assert "means" not in one
    assert view["config"] == CONFIG
    assert (view["skipped"], view["complete"], view["state"]) == (0, True, "stopped")


def test_only_later_points_are_sent_again(tmp_path: Path) -> None:
    path, made = run(tmp_path / "a"), records(30)
    (path / "metrics.jsonl").write_bytes(lines(made[:-1]))  # the evaluation of step 30 is not there yet
    whole = run_view(tmp_path, "a")
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(lines([*made[-1:], {**made[0], "step": 31}]))
    view = run_view(tmp_path, "a", after=29)
    assert curve(view, "loss", "validation") == [[30, 0.07]]
    assert [point[0] for point in curve(view, "loss", "train")] == [30, 31]
    assert (view["config"], view["mistakes"]) == ({}, [])
    assert view["generation"] == whole["generation"]
    assert run_view(tmp_path, "a", after=31)["series"] == []


def test_a_file_read_in_pieces_is_the_file(tmp_path: Path) -> None:
    """However the writer is interrupted: half lines, half letters, lines without their break at the end."""
    made = records(60)
    content = lines(made)[:-1].replace(b'"lr": 0.001,', '"lr": 0.001, "é": 1,'.encode())
    rng = np.random.default_rng(5)
    expected = None
    for trial in range(12):
        path = run(tmp_path / f"r{trial}") / "metrics.jsonl"
        cuts = sorted(set(rng.integers(0, len(content), 40).tolist())) if trial else []
        metrics = MetricsReader(path)
        for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            with path.open("ab") as file:
                file.write(content[begin:end])
            metrics.read_appended()
        found = {name: (track.points()[0].tolist(), track.points()[1].tolist()) for name, track in metrics.tracks.items()}
        expected = expected or found
        assert found == expected
        assert (metrics.skipped, metrics.unread) == (0, 0)
    assert expected is not None
    np.testing.assert_array_equal(expected["loss", "train"][0], read_series(made, "loss", "train")[0])


def test_what_is_no_record_is_counted_and_passed_over(tmp_path: Path) -> None:
    bad = [
        b"no json", b"[1, 2]", b'"text"', b'{"loss": 1}', b'{"step": "3", "loss": 1}', b'{"step": -1, "loss": 1}',
        b'{"step": 1.5, "loss": 1}', b'{"step": NaN, "loss": 1}', b'{"step": 1e300, "loss": 1}', b'{"step": true, "loss": 1}',
        b"[" * 100_000, b'{"step": 1, "loss": ' + b"9" * 5000 + b"}", b"\x00\xff\xfe", b'{"step": 2', b"x" * (2 << 20),
    ]  # fmt: skip
    good = [
        b'{"step": 1, "split": "train", "loss": NaN, "note": "text", "flag": true}', b"", b"   ",
        b'{"step": 2, "split": "train", "loss": -Infinity}', b'{"step": 3, "split": "train", "loss": null}',
        b'{"step": 4, "split": "train", "loss": 0.5}', b'{"step": 5, "split": {"a": 1}, "loss": 1e400}',
    ]  # fmt: skip
    run(tmp_path / "a", b"\n".join([*bad, *good, bad[-1]]) + b"\n")
    view = run_view(tmp_path, "a")
    assert view["skipped"] == len(bad) + 1
    assert curve(view, "loss", "train") == [[1, None], [2, None], [3, None], [4, 0.5]]
    assert {one["key"] for one in view["series"]} == {"loss"}
    json.dumps(view, allow_nan=False, ensure_ascii=False).encode("utf-8")


def test_a_run_that_went_back_says_so(tmp_path: Path) -> None:
    path = run(tmp_path / "a", lines(records(30))) / "metrics.jsonl"
    before = run_view(tmp_path, "a")
    again = tmp_path / "again"
    again.write_bytes(lines(records(20, seed=1)))
    again.replace(path)  # as a resume does it
    after = run_view(tmp_path, "a", after=29)
    assert after["generation"] != before["generation"]
    assert after["series"] == []
    assert len(curve(run_view(tmp_path, "a"), "loss", "train")) == 20
    content = lines(records(20, seed=2))
    path.write_bytes(content + lines([{**records(1)[0], "step": 21}]))  # in place, and longer than before
    view = run_view(tmp_path, "a")
    assert view["generation"] != after["generation"]
    assert curve(view, "loss", "train")[4][1] == pytest.approx(records(20, seed=2)[4]["loss"], rel=1e-5)
    path.write_bytes(content[:200])
    assert len(curve(run_view(tmp_path, "a"), "loss", "train")) == 1


def test_a_long_run_is_thinned_and_its_mean_stays_true(tmp_path: Path) -> None:
    steps = 50_000
    rng = np.random.default_rng(2)
    values = rng.exponential(size=steps)  # far from symmetric: the mean of extremes would be wrong
    values[31_337], values[4_000] = 99, 1e-9
    content = "".join(f'{{"step": {k + 1}, "split": "train", "loss": {value!r}}}\n' for k, value in enumerate(values.tolist()))
    run(tmp_path / "a", content.encode())
    view = run_view(tmp_path, "a")
    points, means = curve(view, "loss", "train"), curve(view, "loss", "train", "means")
    assert 500 <= len(points) <= 1000
    found = [point[0] for point in points]
    assert found == sorted(set(found))
    assert (points[-1][0], points[-1][1]) == (steps, pytest.approx(values[-1], rel=1e-5))
    assert [31_338, 99.0] in points
    assert min(point[1] for point in points) == 1e-9
    assert all(point[1] == pytest.approx(values[point[0] - 1], rel=1e-5) for point in points)
    assert 500 <= len(means) <= 1000
    width = means[1][0] - means[0][0]
    for middle, mean in means[1:-1]:
        begin = round(middle - (width - 1) / 2)
        assert mean == pytest.approx(values[begin - 1 : begin - 1 + round(width)].mean(), rel=1e-4)
    gaps = np.diff(found)
    assert gaps.max() < 4 * steps / 1000 * 4  # evenly: the beginning is not coarser than the end
    assert "means" not in run_view(tmp_path, "a", after=10)["series"][0]


def test_a_huge_file_is_read_bit_by_bit_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_metrics, "_BLOCK", 1 << 16)
    path = run(tmp_path / "a")
    block = lines(records(2000))
    with (path / "metrics.jsonl").open("wb") as file:
        for k in range(10):
            for record in block.splitlines():
                found = json.loads(record)
                file.write(lines([{**found, "step": found["step"] + 2000 * k}]))
    size = (path / "metrics.jsonl").stat().st_size
    metrics = MetricsReader(path / "metrics.jsonl")
    tracemalloc.start()
    looks = 0
    while not looks or metrics.unread:
        metrics.read_appended(budget=1 << 20)
        looks += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert looks == math.ceil(size / (1 << 20))
    assert metrics.tracks["loss", "train"].last[0] == 20_000
    assert peak < 6e6  # a sixth of what the records alone would need
    assert peak < 1.5 * size


def test_a_file_beyond_the_budget_says_that_there_is_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_metrics.MetricsReader.read_appended, "__defaults__", (5000,))
    made = records(100)
    run(tmp_path / "a", lines(made))
    last, answers = -1, 0
    seen: list[int] = []
    while True:
        view = run_view(tmp_path, "a", after=last)
        seen += [point[0] for point in curve(view, "loss", "train")]
        last, answers = max(seen), answers + 1
        if view["complete"]:
            break
    assert answers > 2
    assert seen == list(range(1, 101))


def test_an_untrusted_file_cannot_make_it_keep_any_number_of_curves(tmp_path: Path) -> None:
    long = {f"{'k' * 100}{k}": k for k in range(100)}  # with the same beginning: they must not become one curve
    run(tmp_path / "a", lines([{"step": 1, "split": "s" * 1000, **long, **{f"k{k}": k for k in range(500)}}]))
    view = run_view(tmp_path, "a")
    assert len(view["series"]) == run_metrics.CURVES
    assert view["values_left_out"] == 600 - run_metrics.CURVES
    assert all(one["key"] == f"k{one['points'][0][1]:g}" and len(one["split"]) == 80 for one in view["series"])


def test_watchers_do_not_affect_each_other(tmp_path: Path) -> None:
    path, made = run(tmp_path / "a"), records(400)
    found: list[Any] = []

    def watch() -> None:
        try:
            for _ in range(20):
                found.append(len(curve(run_view(tmp_path, "a"), "loss", "train")))
        except BaseException as error:
            found.append(error)

    watchers = [threading.Thread(target=watch) for _ in range(4)]
    for one in watchers:
        one.start()
    with (path / "metrics.jsonl").open("ab", buffering=0) as file:
        for begin in range(0, len(lines(made)), 997):
            file.write(lines(made)[begin : begin + 997])
    for one in watchers:
        one.join()
    assert all(isinstance(one, int) for one in found), found
    np.testing.assert_allclose(
        [point[1] for point in curve(run_view(tmp_path, "a"), "loss", "train")],
        read_series(made, "loss", "train")[1],
        rtol=1e-5,
    )


def test_only_some_runs_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT", 2)
    for k in range(4):
        run(tmp_path / f"r{k}", lines(records(3)))
        run_view(tmp_path, f"r{k}")
    assert [path.parent.name for path in watched(tmp_path)._readers] == ["r2", "r3"]


# Names ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../elsewhere",
        "/etc",
        "a/../a",
        "a/",
        "./a",
        "a/../../elsewhere",
        "out",
        "A",
        "a\x00",
        "a\\..\\b",
        "%61",
        "\udc80",
    ],
)
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    run(tmp_path / "runs" / "a")
    run(tmp_path / "elsewhere")
    (tmp_path / "runs" / "out").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(UnknownRun, match="GET /runs") as error:
        run_view(tmp_path / "runs", name)
    assert str(tmp_path) not in str(error.value)
    str(error.value).encode("utf-8")


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be written here")
def test_names_may_hold_anything(tmp_path: Path) -> None:
    odd = ["a b", "ä?#%&=+", "<script>alert(1)</script>".replace("/", "_"), "line\nbreak", "quote\"'`", "…", "100%", "a~"]
    for name in odd:
        run(tmp_path / name, lines(records(2)))
    run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/latin-\xe9")), lines(records(2)))
    run(tmp_path / "latin-\\xe9", lines(records(3)))  # what the one before is shown as
    found = names(tmp_path)
    assert len(found) == len(set(found)) == len(odd) + 2
    for name in found:
        json.dumps(name, ensure_ascii=False).encode("utf-8")
        assert "\n" not in name
        assert run_view(tmp_path, name)["step"] in (2, 3)


def test_a_run_that_goes_away_is_unknown(tmp_path: Path) -> None:
    path = run(tmp_path / "a", lines(records(3)))
    run_view(tmp_path, "a")
    for entry in path.iterdir():
        entry.unlink()
    with pytest.raises(UnknownRun):
        run_view(tmp_path, "a", after=2)
    path.rmdir()
    with pytest.raises(UnknownRun):
        run_view(tmp_path, "a", after=2)
    run_dir = run(tmp_path / "b", lines(records(3)))
    run_view(tmp_path, "b")
    run_dir.rename(tmp_path / "moved")
    (tmp_path / "b").symlink_to(tmp_path / "moved", target_is_directory=True)
    with pytest.raises(UnknownRun):
        run_view(tmp_path, "b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = run(tmp_path / "a")
    (path / "metrics.jsonl").unlink()
    os.mkfifo(path / "metrics.jsonl")
    assert listing(tmp_path)["runs"] == []
    (path / "state").mkdir()
    (path / "state" / ".lock").touch()
    assert names(tmp_path) == ["a"]
    with pytest.raises(UnknownRun, match="cannot be read"):
        run_view(tmp_path, "a")


# What else is told ------------------------------------------------------------------------------------------------------------


def test_settings_can_be_carried_by_an_answer_whatever_they_are(tmp_path: Path) -> None:
    path = run(tmp_path / "a", lines(records(2)))
    hostile = '{"model": {"name": "\\ud800<b>"}, "x": NaN, "y": [Infinity, 1], "deep": ' + "[" * 100 + "]" * 100 + "}"
    (path / "config.json").write_text(hostile)
    view = run_view(tmp_path, "a")
    sent = json.loads(json_bytes(view))
    assert sent["config"]["y"] == [None, 1]
    assert sent["model"] == "?<b>"
    for content in ("[" * 100_000, "no json", "[1]", '{"a": ' + "1" * 5000 + "}"):
        (path / "config.json").write_text(content)
        assert run_view(tmp_path, "a")["config"] == {}
        assert names(tmp_path) == ["a"]


def outcome(mistakes: tuple[Mistake, ...]) -> ValidationResult:
    return ValidationResult("validation", ("cat", "dog"), np.eye(2, dtype=np.int64), 0.5, None, 2, 0.7, mistakes)


def test_mistakes_are_kept_as_data(tmp_path: Path) -> None:
    path = run(tmp_path / "a", lines(records(2)), done=True)
    none = run_view(tmp_path, "a")
    assert (none["mistakes"], none["mistakes_of"], none["mistakes_at"]) == ([], None, None)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6), dtype=np.uint8)
    photo = np.full((300, 400, 3), 200, np.uint8)
    worst = (
        Mistake("test/1.png", pixels, ("cat", "<b>pet</b>"), (("dog", 0.75), ("cat", 0.25)), 3.25),
        Mistake("\udce9.jpg", photo, ("dog",), (("cat", math.nan),), math.inf),
    )
    written = write_mistakes(path, outcome(worst), step=7)
    assert written == path / "mistakes.json"
    assert [entry.name for entry in path.iterdir() if entry.name.startswith(".")] == []
    view = run_view(tmp_path, "a")
    json.dumps(view, allow_nan=False, ensure_ascii=False).encode("utf-8")
    assert view["mistakes_of"] == {"split": "validation", "step": 7, "images": 2}
    one, other = view["mistakes"]
    assert (one["id"], one["label"], one["guess"]) == ("test/1.png", "cat + <b>pet</b>", "dog")
    assert (one["probability"], one["loss"], one["guesses"]) == (0.75, 3.25, [["dog", 0.75], ["cat", 0.25]])
    assert (other["probability"], other["loss"]) == (None, None)
    kind, _, coded = one["picture"].partition(",")
    assert kind == "data:image/png;base64"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(coded)))), pixels)
    kind, _, coded = other["picture"].partition(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(coded))).size == (160, 120)
    later = run_view(tmp_path, "a", after=1)
    assert (later["mistakes"], later["mistakes_at"]) == ([], view["mistakes_at"])


def test_untrusted_mistakes_carry_no_address_and_no_surprise(tmp_path: Path) -> None:
    path = run(tmp_path / "a", lines(records(2)))
    bad = [{"picture": "https://example.org/x.png"}, {"picture": 3, "labels": 5, "guesses": {}}, 7, None, "x"]
    (path / "mistakes.json").write_text(json.dumps({"mistakes": bad, "split": 3}))
    view = run_view(tmp_path, "a")
    assert len(view["mistakes"]) == 5
    assert all(one["picture"] is None and one["guesses"] == [] for one in view["mistakes"])
    for content in ("{", '{"mistakes": 3}', "[]"):
        (path / "mistakes.json").write_text(content)
        assert (run_view(tmp_path, "a")["mistakes"], run_view(tmp_path, "a")["mistakes_of"]) == ([], None)
    (path / "mistakes.json").unlink()
    (tmp_path / "secret.json").write_text('{"mistakes": [{"id": "secret"}]}')
    (path / "mistakes.json").symlink_to(tmp_path / "secret.json")
    assert run_view(tmp_path, "a")["mistakes"] == []


def test_a_real_run_is_seen_whole(tmp_path: Path) -> None:
    tiny = ("model.width=32", "model.depth=1", "model.heads=2", "model.mlp=32")
    with silence():
        result = vitreous.pretrain(  # type: ignore[attr-defined]
            data="builtin:digits", model="ViT-Ti/2", set=tiny, steps=6, batch_size=32, workers=0, eval_every=3, subset=200,
            device="cpu", precision="float32", out=str(tmp_path / "runs" / "digits"),
        )  # fmt: skip
    assert result is not None
    (found,) = listing(tmp_path / "runs")["runs"]
    assert (found["name"], found["state"], found["step"], found["steps"]) == ("digits", "finished", 6, 6)
    view = run_view(tmp_path / "runs", "digits")
    assert [point[0] for point in curve(view, "loss", found["split"])] == [3, 6]
    assert view["result"]["steps"] == 6
    assert view["mistakes_of"]["step"] == 6
    assert 0 < len(view["mistakes"]) <= 24
    classes = {str(digit) for digit in range(10)}
    for one in view["mistakes"]:
        assert one["label"] != one["guess"]
        assert one["guess"].split()[-1] in classes or one["guess"] in classes
        assert Image.open(io.BytesIO(base64.b64decode(one["picture"].partition(",")[2]))).size == (8, 8)
    losses = [one["loss"] for one in view["mistakes"]]
    assert losses == sorted(losses, reverse=True)
