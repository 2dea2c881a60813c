"""The number of threads: measured once, kept on disk and in the config, and left alone where somebody has decided."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import digest, pretrain

import vitreous
from vitreous.core.files import cache_dir
from vitreous.core.progress import silence
from vitreous.training import threads

STEPS: dict[str, Any] = dict(steps=2, eval_every=0)


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(threads.VARIABLE)
    monkeypatch.setattr(threads, "available", lambda: 2)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 2)


def config(out: Path) -> Any:
    return json.loads((out / "config.json").read_text())


@pytest.mark.parametrize(("seconds", "chosen"), [((0.1, 0.5), 1), ((0.1, 0.095), 1), ((0.5, 0.1), 2)])
@pytest.mark.usefixtures("undecided")
def test_threads_are_measured_once_and_reused(
    seconds: tuple[float, float], chosen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "measure", lambda *_: seconds)
    used = []
    monkeypatch.setattr(torch, "set_num_threads", lambda count, act=torch.set_num_threads: (used.append(count), act(count)))
    pretrain(tmp_path / "first", **STEPS)
    assert config(tmp_path / "first")["threads"] == chosen
    assert chosen in used
    assert torch.get_num_threads() == 1  # whoever called has his own again
    assert any(
        f"threads {chosen}: " in line and "measured now and kept" in line for line in config(tmp_path / "first")["decisions"]
    )

    monkeypatch.setattr(threads, "measure", lambda *_: pytest.fail("measured again"))
    pretrain(tmp_path / "second", **STEPS)
    assert any("as measured before" in line for line in config(tmp_path / "second")["decisions"])
    assert digest(tmp_path / "first") == digest(tmp_path / "second")
    shutil.rmtree(cache_dir() / "threads")
    with silence():
        vitreous.pretrain(config=str(tmp_path / "first"), out=str(tmp_path / "third"))
    assert config(tmp_path / "third")["threads"] == chosen
    assert pretrain(tmp_path / "first", **STEPS).already


def test_what_somebody_decided_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "available", lambda: 2)
    monkeypatch.setattr(threads, "measure", lambda *_: pytest.fail("measured"))
    pretrain(tmp_path / "run", **STEPS)  # OMP_NUM_THREADS is set for all tests
    assert config(tmp_path / "run")["threads"] == 1


@pytest.mark.usefixtures("undecided")
def test_measuring_changes_no_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, states = threads.measure, []

    def watched(plan: Any, most: int) -> tuple[float, float]:
        states.append(torch.get_rng_state())
        found = measure(plan, most)
        states.append(torch.get_rng_state())
        assert min(found) > 0
        return 0.1, 0.5

    monkeypatch.setattr(threads, "measure", watched)
    pretrain(tmp_path / "measured", **STEPS)
    assert torch.equal(*states)
    monkeypatch.setenv(threads.VARIABLE, "1")
    pretrain(tmp_path / "given", **STEPS)
    assert digest(tmp_path / "measured") == digest(tmp_path / "given")
