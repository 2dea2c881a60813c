"""Which number of images is found, with passes whose speed and memory are made up, so that nothing depends on timing."""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import pretrain

from vitreous.core.errors import VitreousError
from vitreous.training import batch_fitting
from vitreous.training.batch_fitting import find_fastest

GB = 10**9


class Passes:
    """Passes that take the seconds they are told, on a clock of their own; and which ones were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
        self.made: list[int] = []
        self.now = 0.0
        self._seconds = seconds
        monkeypatch.setattr(batch_fitting.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(batch_fitting.timeit, "repeat", self._repeat)

    def _repeat(self, run: Callable[[], None], number: int, repeat: int) -> list[float]:
        return timeit.Timer(run, timer=lambda: self.now).repeat(repeat, number)

    def __call__(self, size: int) -> None:
        self.now += self._seconds(size) + (5.0 if not self.made else 0.0)  # the first one of all is slow
        self.made.append(size)


def divisors(number: int) -> list[int]:
    return [size for size in range(number, 0, -1) if number % size == 0]


def test_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed costs make few images slow; beyond 16 they no longer fit into the cache."""
    passes = Passes(monkeypatch, lambda size: 0.01 + 0.001 * size * (1 if size <= 16 else 4))
    found, why = find_fastest(passes, divisors(128))
    assert found == 16
    assert 64 not in passes.made  # 32 was slow enough to stop
    assert sorted(set(passes.made)) == [1, 2, 4, 8, 16, 32]
    assert why.startswith("the fastest")
    assert "16: 615" in why
    assert "\n" not in why


def test_of_equals_the_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch, lambda size: 0.001 * size * (1.001 if size == 12 else 1))
    assert find_fastest(passes, divisors(12))[0] == 12
    assert set(passes.made) == {1, 3, 6, 12}  # divisors, each at least twice the one before


def test_slow_passes_are_not_timed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch, lambda size: 8.0 + 0.001 * size)
    assert find_fastest(passes, divisors(64))[0] == 1
    assert set(passes.made) == {1}


def test_an_accelerator_without_memory_ends_the_search() -> None:
    tried: list[int] = []

    def run(size: int) -> None:
        tried.append(size)
        if size > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")

    assert find_fastest(run, divisors(48))[0] <= 6
    assert set(tried) <= {1, 3, 6, 12}
    with pytest.raises(torch.OutOfMemoryError):
        find_fastest(run, [48])


def test_other_errors_are_not_hidden() -> None:
    def run(size: int) -> None:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        find_fastest(run, [4])


# In a run ---------------------------------------------------------------------------------------------------------------


def recorded(out: Path) -> Any:
    return json.loads((out / "config.json").read_text())


@pytest.mark.parametrize("how", [None, "auto"])
def test_nothing_larger_than_memory_is_tried(how: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_fitting, "_needed", lambda config, own, world, size: size * GB)
    monkeypatch.setattr(batch_fitting, "free_memory", lambda device: 11 * GB)
    tried: list[int] = []
    monkeypatch.setattr(batch_fitting, "trial_pass", lambda objective, config, images, *_: tried.append(images))
    pretrain(tmp_path / "run", steps=2, eval_every=0, micro_batch=how)
    found = recorded(tmp_path / "run")
    if how == "auto":
        assert max(tried) == 8  # 16 GB are more than there are, and 0.8 * 11 are 8.8
        assert any("the fastest of those timed" in line for line in found["decisions"])
    else:
        assert found["micro_batch"] == 8
        assert any("32 images at once would not fit into the memory that is free" in line for line in found["decisions"])


def test_unknown_memory_is_taken_to_be_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_fitting, "free_memory", lambda device: None)
    pretrain(tmp_path / "run", steps=2, eval_every=0)
    assert recorded(tmp_path / "run")["micro_batch"] == 32


def test_not_even_one_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_fitting, "free_memory", lambda device: 1000)
    with pytest.raises(VitreousError, match=r"not even one image fits into 80% of the memory .*--activation-check"):
        pretrain(tmp_path / "run", micro_batch="auto")
    assert not (tmp_path / "run").exists()
