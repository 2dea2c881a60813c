"""Verdicts by the registered rules, and what result.json says of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from vitreous.studies.registry import find_study
from vitreous.studies.results import decide, decide_claims, seed_effects
from vitreous.studies.study import Claim

SUPERIOR = Claim("A beats B.", "A minus B", {"A": 1, "B": -1})
ALIKE = dataclasses.replace(SUPERIOR, kind="equivalence")
SPREAD = (-0.2, -0.1, 0.0, 0.0, 0.1, 0.2)


def around(mean: float, seeds: int) -> list[float]:
    return [mean + SPREAD[number % 6] for number in range(seeds)]


@pytest.mark.parametrize(
    ("claim", "mean", "seeds", "adjusted", "verdict"),
    [
        (SUPERIOR, 3.0, 6, None, "holds"),
        (SUPERIOR, 3.0, 6, 0.04, "holds"),
        (SUPERIOR, 3.0, 6, 0.06, "undecided"),  # significant alone, and not among eleven
        (SUPERIOR, 3.0, 5, None, "undecided"),  # too few seeds, however clear
        (SUPERIOR, -0.5, 6, None, "contradicted"),
        (SUPERIOR, 0.5, 6, None, "undecided"),  # clear, and smaller than the smallest effect of interest
        (SUPERIOR, 0.5, 16, None, "no difference within 1 point"),
        (SUPERIOR, 0.0, 6, None, "undecided"),  # equivalence needs sixteen
        (SUPERIOR, 0.0, 16, None, "no difference within 1 point"),
        (dataclasses.replace(SUPERIOR, smallest=0.2), 0.5, 6, None, "holds"),
        (ALIKE, 0.0, 16, None, "no difference within 1 point"),
        (ALIKE, 0.0, 15, None, "undecided"),
        (ALIKE, 3.0, 6, None, "contradicted"),
        (ALIKE, -3.0, 16, None, "contradicted"),
        (ALIKE, 1.0, 16, None, "undecided"),
        (ALIKE, 3.0, 5, None, "undecided"),
    ],
)
def test_the_rule(claim: Claim, mean: float, seeds: int, adjusted: float | None, verdict: str) -> None:
    assert decide(claim, around(mean, seeds), adjusted) == verdict


def row(arm: str, seed: int, accuracy: float, **others: Any) -> dict[str, Any]:
    return {"cell": f"{arm} {seed}", "arm": arm, "seed": seed, "role": "main", "accuracy": accuracy, "n": 8, **others}


def test_effects_are_paired_by_seed_and_incomplete_seeds_are_left_out() -> None:
    rows = [row("A", 0, 0.5), row("B", 0, 0.25), row("A", 1, 0.5), row("B", 2, 0.5), row("A", 3, 0.5), row("B", 3, 0.5)]
    rows.append({**row("A", 2, 0.9), "role": "trial"})
    assert seed_effects(SUPERIOR, rows) == {0: 25.0, 3: 0.0}


def test_the_last_bits_of_a_sum_are_no_effect() -> None:
    thirds = Claim("", "", {"A": 1 / 3, "B": 1 / 3, "C": 1 / 3, "D": -1})
    accuracies = [0.1 + number / 7 for number in range(6)]
    rows = [row(arm, seed, accuracy) for seed, accuracy in enumerate(accuracies) for arm in "ABCD"]
    assert set(seed_effects(thirds, rows).values()) == {0.0}
    assert decide(thirds, list(seed_effects(thirds, rows).values()), None) == "undecided"


def test_records_of_a_study() -> None:
    """Six seeds of the primary claim of `positions`; Holm counts the claims that were not run as p = 1."""
    study, sha256 = find_study("positions")
    effects = around(10.0, 6)
    rows = [row("none", seed, 0.5) for seed in range(6)]
    rows += [row("1-D, stem", seed, 0.5 + effect / 100) for seed, effect in enumerate(effects)]
    right = {"none": np.packbits([1, 1, 1, 1, 0, 0, 0, 0]), "1-D, stem": np.packbits([1, 1, 1, 1, 1, 0, 0, 0])}
    outcomes = {f"{arm} {seed}": bits for arm, bits in right.items() for seed in range(6)}
    first, *others = decide_claims(study, sha256, rows, outcomes, {})
    assert first["effect"] == pytest.approx(10.0)
    assert first["p_holm"] == pytest.approx(11 * first["p"])
    assert (first["seeds"], first["complete"], first["primary"], first["verdict"]) == (6, True, True, "holds")
    assert first["bootstrap"][0] <= 12.5 <= first["bootstrap"][1]
    assert first["study_sha256"] == sha256
    for record in others:
        assert (record["effect"], record["p"], record["p_holm"], record["verdict"]) == (None, None, None, "undecided")
    # Another study that comes first takes a step of the ladder.
    again, *_ = decide_claims(study, sha256, rows, outcomes, {"head": 0.0})
    assert again["p_holm"] == pytest.approx(10 * first["p"])
    # Outcomes of other images than the rows' are not mixed in.
    assert decide_claims(study, sha256, rows, {**outcomes, "none 0": np.packbits([1] * 20)}, {})[0]["bootstrap"] is None
