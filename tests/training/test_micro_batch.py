"""Which number of images is found, with steps whose speed and memory are made up, so that nothing depends on timing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from vitreous.core.errors import VitreousError
from vitreous.training import micro_batch
from vitreous.training.micro_batch import find_micro_batch

GB = 10**9


class Steps:
    """Steps that take the seconds they are told, on a clock of their own; and which ones were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
        self.made: list[int] = []
        self.now = 0.0
        self._seconds = seconds
        monkeypatch.setattr(micro_batch.time, "perf_counter", lambda: self.now)

    def __call__(self, size: int) -> None:
        self.now += self._seconds(size) + (5.0 if not self.made else 0.0)  # the first one of all is slow
        self.made.append(size)


def nothing(size: int) -> int:
    return 0


def test_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed costs make few images slow; beyond 16 they no longer fit into the cache."""
    steps = Steps(monkeypatch, lambda size: 0.01 + 0.001 * size * (1 if size <= 16 else 4))
    found, why = find_micro_batch(steps, 128, device="cpu", needed=nothing, budget_bytes=GB)
    assert found == 16
    assert 64 not in steps.made  # 32 was slow enough to stop
    assert sorted(set(steps.made)) == [1, 2, 4, 8, 16, 32]
    assert why.startswith("micro-batch 16: the fastest")
    assert "16: 615" in why
    assert "\n" not in why


def test_of_equals_the_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, lambda size: 0.001 * size * (1.001 if size == 12 else 1))
    assert find_micro_batch(steps, 12, device="cpu", needed=nothing, budget_bytes=GB)[0] == 12
    assert set(steps.made) == {1, 3, 6, 12}  # divisors, each at least twice the one before


def test_nothing_larger_than_memory_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, lambda size: 1e-3)
    found, why = find_micro_batch(steps, 96, device="cpu", needed=lambda size: size * GB, budget_bytes=30 * GB)
    assert found == max(steps.made) == 24  # 32 GB are more than there are, and 0.8 * 30 are 24
    assert "of 30 GB free, 24 GB at the most" in why


def test_the_machine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "free_memory", lambda: 10 * GB)
    steps = Steps(monkeypatch, lambda size: 1e-3)
    assert find_micro_batch(steps, 64, device="cpu", needed=lambda size: size * GB)[0] == 8
    monkeypatch.setattr(micro_batch, "free_memory", lambda: None)
    with pytest.raises(VitreousError, match="does not tell how much memory is free"):
        find_micro_batch(steps, 64, device="cpu", needed=nothing)


def test_slow_steps_are_not_timed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, lambda size: 8.0 + 0.001 * size)
    assert find_micro_batch(steps, 64, device="cpu", needed=nothing, budget_bytes=GB)[0] == 1
    assert set(steps.made) == {1}


def test_not_even_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, lambda size: 1.0)
    with pytest.raises(VitreousError, match=r"one image needs 2 GB and 80% of what is free are 0.8 GB; .*--activation-check"):
        find_micro_batch(steps, 8, device="cpu", needed=lambda size: 2 * GB, budget_bytes=GB)
    assert steps.made == []
    with pytest.raises(VitreousError, match="must be at least 1"):
        find_micro_batch(steps, 0, device="cpu", needed=nothing)


def test_a_real_model() -> None:
    import vitreous

    model = vitreous.create("ViT-Ti/8", image_size=16, classes=3, width=48, depth=1, heads=3)

    def step(size: int) -> None:
        model(torch.ones(size, 3, 16, 16)).sum().backward()

    found, why = find_micro_batch(step, 6, device="cpu", needed=nothing)
    assert found in (1, 3, 6)
    assert f"micro-batch {found}: " in why


# An accelerator: what torch does when its memory is at an end ----------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    calls: list[str] = []
    module = SimpleNamespace(
        calls=calls, synchronize=lambda: calls.append("synchronize"), empty_cache=lambda: calls.append("empty")
    )
    monkeypatch.setattr(torch, "cuda", module)
    return module


def test_the_largest_that_fits(cuda: SimpleNamespace) -> None:
    tried: list[int] = []

    def step(size: int) -> None:
        tried.append(size)
        if size > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")

    found, why = find_micro_batch(step, 48, device="cuda:1", needed=nothing)
    assert (found, tried) == (8, [48, 24, 16, 12, 8])
    assert "cuda:1" in why
    assert cuda.calls == ["empty"] * 4 + ["synchronize"]


def test_none_fits_the_device(cuda: SimpleNamespace) -> None:
    def step(size: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(VitreousError, match="not even one image fits into the memory of cuda"):
        find_micro_batch(step, 4, device="cuda", needed=nothing)


def test_other_errors_are_not_hidden(cuda: SimpleNamespace) -> None:
    def step(size: int) -> None:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        find_micro_batch(step, 4, device="cuda", needed=nothing)
