"""The cost study: which batch fits, resuming, what is refused, and the files that come out."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.models.build import create
from vitreous.models.cost import cost
from vitreous.models.names import parse_name
from vitreous.studies import cost_study
from vitreous.studies.cost_figure import draw_cost
from vitreous.studies.cost_rows import CostRow, read_rows, write_rows
from vitreous.studies.cost_study import estimate_largest_batch, find_largest_batch, forward_bytes, run_cost_study
from vitreous.training.memory import LivingTensors

MODELS, SIZES = ("ViT-Ti/32", "R26x1"), (32, 64)


def row(**fields: Any) -> CostRow:
    given: dict[str, Any] = dict(
        arm="ViT-Ti/32", seed=0, family="ViT", image_size=32, device="cpu", precision="float32", threads=1, parameters=1,
        macs=1, batch=4, images_per_second=100.5, images_per_second_low=90.0, images_per_second_high=110.0, rounds=3,
        largest_batch=64, largest_batch_by="estimate", memory_bytes=1 << 30, flops=2, seconds=0.5,
    )  # fmt: skip
    return CostRow(**given | fields)


@given(st.integers(0, 5_000))
def test_the_largest_batch_is_found_by_trying_to_within_an_eighth(most: int) -> None:
    tried = []

    def run(batch: int) -> None:
        tried.append(batch)
        if batch > most:
            raise torch.OutOfMemoryError

    found = find_largest_batch(run)
    assert found <= most
    assert most - found <= found / 8
    assert len(tried) < 24


def test_an_error_other_than_memory_is_not_taken_for_it() -> None:
    def run(batch: int) -> None:
        raise RuntimeError("illegal instruction")

    with pytest.raises(RuntimeError, match="illegal"):
        find_largest_batch(run)


@pytest.mark.parametrize("name", ["ViT-Ti/16", "R26x1"])
def test_the_estimate_is_what_a_forward_pass_holds(name: str) -> None:
    """Computed without data; beside it a real pass. One image more than the estimate would not fit."""
    config = parse_name(name, image_size=32)
    model = create(name, image_size=32).eval()
    with torch.no_grad(), LivingTensors() as living:
        model(torch.empty(6, 3, 32, 32))
    assert forward_bytes(config, 6) == pytest.approx(living.peak, rel=0.01)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    for memory in (80 << 20, 256 << 20):
        most = estimate_largest_batch(config, memory)
        assert weights + forward_bytes(config, most) <= memory
        assert weights + forward_bytes(config, most + 1) > memory
    assert estimate_largest_batch(config, 1 << 20) == 0


def test_it_measures_resumes_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], int]] = []
    measure = cost_study._measure_size

    def watched(names: list[str], size: int, *rest: Any) -> Any:
        calls.append((list(names), size))
        if len(calls) == 2:  # as a kill would, after the first size
            raise KeyboardInterrupt
        return measure(names, size, *rest)

    monkeypatch.setattr(cost_study, "_measure_size", watched)
    monkeypatch.setattr(cost_study, "_MOST_ROUNDS", 3)
    options: dict[str, Any] = dict(device="cpu", budget_seconds=600.0)
    monkeypatch.setattr(cost_study, "find_fastest", lambda run, sizes, seconds: (run(2), (2, ""))[1])
    with silence(), pytest.raises(KeyboardInterrupt):
        run_cost_study(tmp_path, MODELS, SIZES, **options)
    first = read_rows(tmp_path / "runs.csv")
    assert [(r.arm, r.image_size) for r in first] == [("ViT-Ti/32", 32), ("R26x1", 32)]
    with silence():
        rows = run_cost_study(tmp_path, MODELS, SIZES, **options)
    assert calls == [([*MODELS], 32), ([*MODELS], 64), ([*MODELS], 64)]
    assert rows[:2] == first
    assert {r.memory_bytes for r in rows} == {first[0].memory_bytes}
    assert read_rows(tmp_path / "runs.csv") == rows
    for r in rows:
        assert (r.batch, r.rounds) == (2, 3)
        assert r.images_per_second_low <= r.images_per_second <= r.images_per_second_high
        assert r.macs == cost(r.arm, r.image_size).macs
    assert rows[0].largest_batch > rows[2].largest_batch > 0
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    drawing = (tmp_path / "figure.svg").read_text()
    assert all(name in drawing for name in (*MODELS, "images per second", "Largest batch that fits (estimated for"))
    with silence():  # nothing is left to do
        assert run_cost_study(tmp_path, MODELS, SIZES, **options) == rows
    assert len(calls) == 3


def test_interleaved_turns_begin_with_another_model_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    time_pass = cost_study._Trial.time_pass

    def noted(trial: Any) -> None:
        order.append(trial.config.name)
        time_pass(trial)

    monkeypatch.setattr(cost_study._Trial, "time_pass", noted)
    monkeypatch.setattr(cost_study, "find_fastest", lambda run, sizes, seconds: (1, ""))
    monkeypatch.setattr(cost_study, "_MOST_ROUNDS", 3)
    rows = list(cost_study.measure_cost(MODELS, (32,), "cpu", 600.0, memory=1 << 30))
    a, b = MODELS
    assert order == [a, b, b, a, a, b]
    assert [r.rounds for r in rows] == [3, 3]


def test_sizes_that_a_patch_does_not_divide_are_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cost_study.check_grid(("ViT-H/14",), (64, 224))
    with pytest.raises(VitreousError, match="64 is not a multiple of ViT-H/14's patch"):
        run_cost_study(tmp_path, ("ViT-H/14",), (64, 128), "cpu")
    assert list(cost_study.measure_cost(("ViT-Ti/14",), (64,), "cpu", 60.0, memory=1)) == []
    assert "left out, because its patch does not divide them: ViT-Ti/14" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(models=("ViT-X/16",)), "unknown model 'ViT-X/16'"),
        (dict(models=()), "at least one model"),
        (dict(device="abacus"), "--device abacus: "),
        (dict(budget_seconds=0.0), "too few for one measurement"),
    ],
)
def test_what_is_refused_writes_nothing(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with silence(), pytest.raises(VitreousError, match=words):
        run_cost_study(tmp_path, **{**dict(models=MODELS, sizes=SIZES, device="cpu"), **options})
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_device_or_of_something_else_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "runs.csv", [row(device="cuda")])
    with pytest.raises(VitreousError, match="was measured on cuda in float32, not on cpu in float32; choose another --out"):
        run_cost_study(tmp_path, MODELS, SIZES, "cpu")
    (tmp_path / "runs.csv").write_text("arm,seed,accuracy\na,1,0.5\n")
    with pytest.raises(VitreousError, match=r"runs\.csv: is no table of the cost study"):
        run_cost_study(tmp_path, MODELS, SIZES, "cpu")


def test_rows_survive_the_file_and_name_their_columns_as_the_contract(tmp_path: Path) -> None:
    rows = [row(), row(arm="R50x1", family="ResNet", images_per_second=1 / 3, largest_batch=0)]
    write_rows(tmp_path / "runs.csv", rows)
    assert read_rows(tmp_path / "runs.csv") == rows
    with (tmp_path / "runs.csv").open() as file:
        columns = next(csv.reader(file))
    assert columns == [field.name for field in dataclasses.fields(CostRow)]
    assert {"arm", "seed", "flops", "seconds"} <= set(columns)


def test_a_batch_that_does_not_fit_at_all_is_not_drawn() -> None:
    figure = draw_cost([row(), row(image_size=64, largest_batch=0)])
    speed, batch = figure.axes
    assert list(speed.lines[0].get_xdata()) == [32, 64]
    assert list(batch.lines[0].get_xdata()) == [32]
