"""`vitreous list studies`: what is fixed before any run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import vitreous.studies
from vitreous.cli import main
from vitreous.studies.registry import COST, STUDIES


def test_studies_are_listed_with_their_claims_and_the_hash_of_their_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "studies", "--json"]) == 0
    found = {record["name"]: record for record in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(found) == [*STUDIES, COST]
    for name in STUDIES:
        file = Path(vitreous.studies.__file__).parent / f"{name.replace('-', '_')}_study.py"
        assert found[name]["study_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        claims = found[name]["claims"]
        assert [claim["primary"] for claim in claims] == [True] + [False] * (len(claims) - 1)
        for claim in claims:
            assert claim["seeds"] == (16 if claim["kind"] == "equivalence" else 6)
            assert ("Holm" in claim["rule"]) == (claim["primary"] and claim["kind"] == "superiority")
            assert f"at least {claim['seeds']} seeds" in claim["rule"]
    # Three rates with two seeds; 16 seeds of 1-D, 2-D and relative, six of none, two of the other four.
    assert found["positions"]["runs"] == 3 * 2 + 3 * 16 + 6 + 4 * 2
    assert found[COST]["claims"] == []
    assert main(["list", "studies"]) == 0
    printed = capsys.readouterr().out
    assert "A position embedding beats none." in printed
