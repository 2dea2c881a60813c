"""What is shown while a run goes on: a bar on a terminal, lines elsewhere, nothing where it should be quiet."""

from __future__ import annotations

import io
import mmap
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitreous.core import progress
from vitreous.training import progress_display as display
from vitreous.training.progress_display import Display, clock, memory_in_use


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Terminal]:
    def make(columns: int) -> Terminal:
        made = Terminal()
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return make


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The hand of a clock that only the test moves."""
    now = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def test_plain_lines_come_every_ten_seconds(capsys: pytest.CaptureFixture[str], hand: list[float]) -> None:
    with Display("finetune", 2000, 100, 256) as shown:
        for step in range(101, 601):
            hand[0] += 0.1
            shown.on_step(step, 0.5 if step % 50 == 0 else None, 3e-4, 512.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "finetune: 2,000 steps of 256 images, from step 100"
    assert lines[-1] == "finetune: 600 of 2,000 steps done in 0:50"
    assert 4 <= len(lines[1:-1]) <= 5
    # 1,800 steps of 256 images at 512 a second are 900 seconds.
    assert re.fullmatch(
        r"finetune: 20\d of 2,000 \(10%\), 512 images/s, (15:00|14:5\d) left, loss 0\.5, lr 0\.0003, \d+\.\d\d GB", lines[1]
    )


def test_a_step_without_a_speed_keeps_the_last(capsys: pytest.CaptureFixture[str], hand: list[float]) -> None:
    with Display("x", 100, 0, 10) as shown:
        hand[0] += progress.INTERVAL
        shown.on_step(1, 2.5, 0.1, 0.0)
        hand[0] += progress.INTERVAL
        shown.on_step(2, float("nan"), 0.1, 4.0)
        hand[0] += progress.INTERVAL
        shown.on_step(50, 1.5, 0.1, 0.0)
    _, first, second, third, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("x: 1 of 100 (1%), loss 2.5, lr 0.1")
    assert second.startswith("x: 2 of 100 (2%), 4.0 images/s, 4:05 left, loss nan, lr 0.1")
    assert third.startswith("x: 50 of 100 (50%), 4.0 images/s, 2:05 left, loss 1.5, lr 0.1")


def test_an_error_is_not_called_done(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with Display("x", 100) as shown:
            shown.on_step(3, 1.0, 0.1, 10.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "done" not in capsys.readouterr().err


def test_silence(capsys: pytest.CaptureFixture[str], terminal: Callable[[int], Terminal]) -> None:
    screen = terminal(100)
    with progress.silence(), Display("x", 10) as shown:
        shown.on_step(1, 1.0, 0.1, 10.0)
        shown.on_message("hello")
    assert screen.getvalue() == ""
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("columns", "title", "bar"), [(140, True, True), (76, True, False), (66, False, False)])
def test_the_bar_gives_way_to_the_figures(
    terminal: Callable[[int], Terminal], columns: int, title: bool, bar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "memory_in_use", lambda device: 1_230_000_000)
    screen = terminal(columns)
    with Display("run [b]{x}", 90, 0, 32) as shown:
        shown.on_step(20, 0.25, 1e-5, 64.0)
    text = plain(screen.getvalue())
    assert "20/90 64 img/s · 0:35 left · loss 0.25 · lr 1e-05 · 1.23 GB" in text
    assert ("run [b]{x}" in text) == title
    assert ("━" in text) == bar


def test_lines_are_said_above_the_bar_as_they_are(terminal: Callable[[int], Terminal]) -> None:
    screen = terminal(60)
    long = "word " * 40
    with Display("x", 10) as shown:
        shown.on_message(f"[red]{long}[/red] :smile:\nsecond\x1b[2J")
    lines = [line.strip() for line in plain(screen.getvalue()).splitlines()]
    assert f"[red]{long}[/red] :smile:" in lines
    assert "second\\x1b[2J" in lines
    assert "\x1b[2J" not in screen.getvalue()


def test_standard_output_is_not_taken_by_the_bar(
    terminal: Callable[[int], Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    screen = terminal(80)
    with Display("x", 10):
        print("for the pipe")
    assert capsys.readouterr().out == "for the pipe\n"
    assert "for the pipe" not in screen.getvalue()


def test_a_dumb_terminal_gets_lines(terminal: Callable[[int], Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(80)
    monkeypatch.setenv("TERM", "dumb")
    with Display("x", 10) as shown:
        shown.on_message("hello")
    assert screen.getvalue().splitlines() == ["x: 10 steps of 1 images", "hello", "x: 0 of 10 steps done in 0:00"]


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3599, 3600, 90_061)] == ["0:00", "1:00", "1:01", "59:59", "1:00:00", "25:01:01"]


def test_memory_grows_with_what_is_held() -> None:
    """From the system itself: an allocator may have kept as much from an earlier test, and would take nothing new."""
    before = memory_in_use(torch.device("cpu"))
    with mmap.mmap(-1, 64_000_000) as held:
        for _ in range(64):
            held.write(b"1" * 1_000_000)
        grown = memory_in_use(torch.device("cpu")) - before
    assert before > 20_000_000
    assert 56_000_000 < grown < 200_000_000


def test_memory_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    now = memory_in_use(torch.device("cpu"))
    monkeypatch.setattr(display, "Path", lambda path: Path("no such file"))
    most = memory_in_use(torch.device("cpu"))
    unit = 1 if sys.platform == "darwin" else 1024
    assert most == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert most >= 0.9 * now
