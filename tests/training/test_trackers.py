"""TensorBoard for real where it is installed; Weights & Biases by a stand-in that keeps its rules."""

from __future__ import annotations

import contextlib
import http.server
import math
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.training import trackers
from vitreous.training.trackers import Trackers, parse_trackers

CONFIG = {"recipe": {"lr": 0.1}, "classes": ("a", "b")}


def record(step: int, split: str = "train", **more: Any) -> dict[str, Any]:
    return {"step": step, "epoch": step / 10, "split": split, "loss": 1.0 / step, "lr": None, "flag": True, **more}


class Run:
    def __init__(self, settings: dict[str, Any], step: int) -> None:
        self.settings, self.step, self.rows, self.finished = settings, step, [], False  # type: ignore[var-annotated]
        self.broken = False

    def log(self, values: dict[str, float], step: int) -> None:
        if self.broken:
            raise ConnectionError("lost\nthe line")
        assert step >= self.step, "wandb drops what goes back"
        self.rows.append((step, values))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = types.ModuleType("wandb")
    made.runs, made.step, made.fails = [], 0, None  # type: ignore[attr-defined]

    def init(**settings: Any) -> Run:
        if made.fails:  # type: ignore[attr-defined]
            raise RuntimeError(made.fails)  # type: ignore[attr-defined]
        made.runs.append(Run(settings, made.step))  # type: ignore[attr-defined]
        return made.runs[-1]  # type: ignore[attr-defined]

    made.init = init  # type: ignore[attr-defined]
    made.Settings = lambda **own: types.SimpleNamespace(base_url="http://127.0.0.1:9", **own)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return made


@contextlib.contextmanager
def answering(status: int) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# Names ------------------------------------------------------------------------------------------------------------------------


def test_names_are_a_comma_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name)  # as if both were there
    assert parse_trackers("") == ()
    assert parse_trackers(" wandb, tensorboard,wandb,") == ("wandb", "tensorboard")
    with pytest.raises(VitreousError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        parse_trackers("tensorbord")


def test_no_tracker_is_no_work(tmp_path: Path) -> None:
    none = Trackers((), tmp_path, CONFIG, 0)
    none.on_metrics(record(1))
    none.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_with_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == name or m.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    with pytest.raises(VitreousError, match=rf"{name} is not installed; pip install 'vitreous\[track\]'"):
        parse_trackers(name)


# TensorBoard ------------------------------------------------------------------------------------------------------------------


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with contextlib.closing(Trackers(["tensorboard"], tmp_path, CONFIG, 0)) as open_ones:
        open_ones.on_metrics(record(1))
        open_ones.on_metrics(record(2, "validation", top1=0.5, note="text", bad=math.nan))
        found = scalars(tmp_path)  # before it is closed: a run may be killed
    assert found["train/loss"] == [(1, 1.0)]
    assert found["validation/loss"] == [(2, 0.5)]
    assert found["validation/top1"] == [(2, 0.5)]
    assert math.isnan(found["validation/bad"][0][1])
    assert set(found) == {f"{s}/{k}" for s in ("train", "validation") for k in ("loss", "epoch")} | {
        "validation/top1",
        "validation/bad",
    }


@pytest.mark.parametrize("start", [0, 3])
def test_after_a_resume_every_step_is_there_once(start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after step 6; the state was that of step `start`, so the steps after it are logged again."""
    pytest.importorskip("tensorboard")
    first = Trackers(["tensorboard"], tmp_path, CONFIG, 0)
    for step in range(1, 7):
        first.on_metrics(record(step))
    first.close()
    for path in (tmp_path / "tensorboard").iterdir():
        path.rename(path.with_name(path.name.replace("tfevents.", "tfevents.0")))  # the older file sorts before the newer
    second = Trackers(["tensorboard"], tmp_path, CONFIG, start)
    for step in range(start + 1, 9):
        second.on_metrics(record(step, loss=10.0 * step))
    second.close()
    expected = [(step, 1 / step if step <= start else 10.0 * step) for step in range(1, 9)]
    assert scalars(tmp_path)["train/loss"] == [(step, pytest.approx(value)) for step, value in expected]


# Weights & Biases -------------------------------------------------------------------------------------------------------------


def test_wandb_gets_config_and_records(wandb: Any, tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    with contextlib.closing(Trackers(["wandb"], folder, CONFIG, 0)) as open_ones:
        open_ones.on_metrics(record(1))
        open_ones.on_metrics(record(1, "validation", top1=0.5))
    (run,) = wandb.runs
    assert run.rows == [
        (1, {"train/epoch": 0.1, "train/loss": 1.0}),
        (1, {"validation/epoch": 0.1, "validation/loss": 1.0, "validation/top1": 0.5}),
    ]
    assert run.finished
    assert run.settings["config"] == {"recipe": {"lr": 0.1}, "classes": ["a", "b"]}
    assert (run.settings["name"], run.settings["resume"], run.settings["dir"]) == ("pets", "allow", str(folder))
    assert run.settings["mode"] is None  # WANDB_MODE decides


def test_a_run_keeps_its_id_when_it_is_moved_and_a_new_one_gets_its_own(wandb: Any, tmp_path: Path) -> None:
    for name in ("a", "a", "b"):
        Trackers(["wandb"], tmp_path / name, CONFIG, 0).close()
    (tmp_path / "a").rename(tmp_path / "moved")
    Trackers(["wandb"], tmp_path / "moved", CONFIG, 5).close()
    Trackers(["wandb"], tmp_path / "a", CONFIG, 0).close()
    first, again, other, moved, fresh = (run.settings["id"] for run in wandb.runs)
    assert first == again == moved
    assert len({first, other, fresh}) == 3


def test_what_wandb_has_already_is_not_sent_again(wandb: Any, tmp_path: Path) -> None:
    wandb.step = 7
    with contextlib.closing(Trackers(["wandb"], tmp_path, CONFIG, 4)) as open_ones:
        for step in range(5, 10):
            open_ones.on_metrics(record(step))
    assert [step for step, _ in wandb.runs[0].rows] == [7, 8, 9]


def test_without_a_connection_it_is_offline_and_says_so(wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(trackers, "_answers", lambda address: False)
    said: list[str] = []
    Trackers(["wandb"], tmp_path, CONFIG, 0, said.append).close()
    assert wandb.runs[0].settings["mode"] == "offline"
    assert len(said) == 1
    assert "wandb sync" in said[0]
    monkeypatch.setattr(trackers, "_answers", lambda address: address == "http://127.0.0.1:9")
    Trackers(["wandb"], tmp_path, CONFIG, 0, said.append).close()
    assert wandb.runs[1].settings["mode"] is None


def test_whether_something_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for status in (200, 403):
        with answering(status) as address:
            assert trackers._answers(address)
    assert not trackers._answers(address)  # nobody is there any more
    assert not trackers._answers("no address")


def test_quiet_is_meant_for_wandb_too(wandb: Any, tmp_path: Path) -> None:
    for quiet in (False, True):
        with silence(quiet):
            Trackers(["wandb"], tmp_path, CONFIG, 0).close()
    loud, quiet_one = (run.settings["settings"] for run in wandb.runs)
    assert not hasattr(loud, "silent")  # WANDB_SILENT decides
    assert quiet_one.silent


def test_a_wandb_that_will_not_start_is_one_line_with_a_remedy(wandb: Any, tmp_path: Path) -> None:
    wandb.fails = "api_key not configured\n(no-tty)"
    with pytest.raises(VitreousError, match=r"api_key not configured \(no-tty\); `wandb login`, or set WANDB_MODE=offline"):
        Trackers(["wandb"], tmp_path, CONFIG, 0)


def test_what_fails_later_costs_the_tracker_and_not_the_run(wandb: Any, tmp_path: Path) -> None:
    said: list[str] = []
    open_ones = Trackers(["wandb"], tmp_path, CONFIG, 0, said.append)
    open_ones.on_metrics(record(1))
    wandb.runs[0].broken = True
    for step in (2, 3):
        open_ones.on_metrics(record(step))
    open_ones.close()
    assert [step for step, _ in wandb.runs[0].rows] == [1]
    assert said == ["wandb failed and is left out from here on: lost the line; metrics.jsonl has everything"]
