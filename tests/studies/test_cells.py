"""Cells of a grid: their order, their keys, learning rates by trials."""

from __future__ import annotations

import dataclasses

import pytest

from vitreous.core.errors import VitreousError
from vitreous.core.progress import describe_seconds
from vitreous.studies.budget import parse_budget
from vitreous.studies.registry import STUDIES, find_study
from vitreous.studies.run_cells import _check_trials
from vitreous.studies.study import Cell, Scale, Stage, tuned_families, tuned_rates, with_rates

SCALE = Scale(2, "builtin:digits", "builtin:letters?size=16&count=32000", 8, 32_000, 64, 4, channels=1)


def test_the_key_of_a_cell_is_the_same_on_every_machine() -> None:
    cell = Cell("arm", 3, (Stage("pretrain", {"data": "x", "steps": 5}, {"lr": 0.1}),), {"family": "f"})
    assert cell.key() == "6c09b2c88fe969b8"
    assert dataclasses.replace(cell, seed=4).key() != cell.key()


@pytest.mark.parametrize("name", STUDIES)
def test_a_grid_has_each_cell_once_and_what_its_claims_need(name: str) -> None:
    study, _ = find_study(name)
    cells = study.cells(SCALE)
    assert len({cell.key() for cell in cells}) == len(cells)
    _check_trials(cells)
    roles = [cell.role for cell in cells]
    assert roles == sorted(roles, reverse=True)  # trials first
    main = [cell for cell in cells if cell.role == "main"]
    for claim in study.claims:
        for arm in claim.weights:
            assert {cell.seed for cell in main if cell.arm == arm} >= set(range(claim.seeds))
    primary = study.primary_cells(cells)
    _check_trials(primary)
    own = [cell for cell in primary if cell.role == "main"]
    assert {cell.arm for cell in own} == set(study.claims[0].weights)
    assert own == main[: len(own)] or study.claims[0].seeds < max(claim.seeds for claim in study.claims)
    # No seed of a verdict has chosen a learning rate, and trials hold out training images.
    assert not {cell.seed for cell in main} & {cell.seed for cell in cells if cell.role == "trial"}
    assert all(cell.stages[-1].options["held_out"] == 0.1 for cell in cells if cell.role == "trial")
    few = study.cells(dataclasses.replace(SCALE, seeds=2))
    assert {cell.seed for cell in few if cell.role == "main"} == {0, 1}


def test_seeds_of_an_arm_come_in_turns() -> None:
    study, _ = find_study("axial")
    first = [(cell.arm, cell.seed) for cell in study.cells(SCALE) if cell.role == "main"][:4]
    assert first == [("axial", 0), ("full", 0), ("axial", 1), ("full", 1)]


def trial(family: str, lr: float, seed: int) -> Cell:
    return Cell(
        f"{family}, lr {lr:g}",
        seed,
        (Stage("pretrain", {"seed": seed}, {"lr": lr}),),
        {"family": family, "lr": lr},
        role="trial",
    )


def test_the_best_mean_of_all_trials_is_the_rate() -> None:
    cells = [trial(family, lr, seed) for family in "ab" for lr in (0.1, 0.2, 0.4) for seed in (1000, 1001)]
    scores = dict(zip([cell.key() for cell in cells], [0.5, 0.7, 0.9, 0.3, 0.6, 0.5, *[0.5] * 6], strict=True))
    assert tuned_rates(cells, scores) == {"a": 0.1, "b": 0.1}  # of equals the lower
    del scores[cells[0].key()]
    assert tuned_rates(cells, scores) == {"b": 0.1}  # a family whose trials are not all done has none


def test_a_stage_takes_the_rate_of_its_family() -> None:
    stage = Stage("pretrain", {}, {"lr": "tuned:a"})
    cell = Cell("arm", 0, (stage,), {})
    assert tuned_families(cell) == {"a"}
    assert with_rates(stage, {"a": 0.1}).set == {"lr": 0.1}
    with pytest.raises(VitreousError, match="rate of a is not chosen yet"):
        with_rates(stage, {})
    with pytest.raises(VitreousError, match="no trials of the learning rate of a; add a Tuning"):
        _check_trials([cell])


def test_budgets() -> None:
    assert [parse_budget(text) for text in ("90s", "30m", "30 min", "1.5h", "1d")] == [90, 1800, 1800, 5400, 86_400]
    for text in ("", "2", "h", "-1h", "0m", "2 weeks", "nan s"):
        with pytest.raises(VitreousError, match="--budget"):
            parse_budget(text)
    assert [describe_seconds(seconds) for seconds in (5, 120, 7200)] == ["5 s", "2 min 0 s", "2 h 0 min"]
