"""The results of a study as files: runs.csv, outcomes of test images, and result.json with a verdict for each claim."""

from __future__ import annotations

import csv
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import atomic_file, write_text
from vitreous.core.untrusted_json import read_json
from vitreous.studies.rows import Row
from vitreous.studies.statistics import bootstrap, equivalence_p, holm, paired_t
from vitreous.studies.study import EQUIVALENCE_SEEDS, MARGIN, SUPERIORITY_SEEDS, Cell, Claim, Study

RUNS, RESULT, OUTCOMES = "runs.csv", "result.json", "outcomes.npz"
_FIRST = ("arm", "seed", "role", "accuracy", "n", "flops", "seconds")
_LAST = ("run", "parent", "cell", "config")
_TEXT = {"arm", "role", "family", "run", "parent", "cell", "config"}
FAMILY = 11  # primary claims, among which Holm's correction is made


def read_runs(path: Path) -> dict[str, Row]:
    """Rows by cell; none where nothing was run yet."""
    if not path.exists():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {str(row["cell"]): row for row in map(_parse_row, csv.DictReader(file))}
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise VitreousError(f"{path}: is no table of runs ({one_line(error)}); restore it, or choose another --out") from error


def _parse_row(line: Mapping[str, str]) -> Row:
    if None in line or None in line.values():
        raise ValueError("a line has other columns than the first")
    row = {name: _parse(name, text) for name, text in line.items()}
    for name in ("accuracy", "seed", "flops", "seconds"):
        if not isinstance(row[name], int | float) or not math.isfinite(row[name]):
            raise ValueError(f"{name} {line[name]!a} is no number")
    if not row["cell"] or not row["arm"] or row["role"] not in ("main", "trial"):
        raise ValueError("a line has no cell, arm or role")
    return row


def _parse(name: str, text: str) -> Any:
    try:
        return text if name in _TEXT else int(text) if text.isdecimal() else float(text) if text else None
    except ValueError:
        return text


def write_runs(path: Path, rows: Sequence[Row]) -> None:
    others = sorted({name for row in rows for name in row} - {*_FIRST, *_LAST})
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, (*_FIRST, *others, *_LAST), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)


# Outcomes of test images -----------------------------------------------------------------------------------------------


def read_outcomes(out: Path, cells: Sequence[Cell], arms: set[str]) -> dict[str, NDArray[np.uint8]]:
    """The packed bits of every cell of these arms, by its key: of this machine's rows, and of what came with the results."""
    found: dict[str, NDArray[np.uint8]] = {}
    path = out / OUTCOMES
    try:
        if path.exists():
            with np.load(path, allow_pickle=False) as kept:
                found = {name: kept[name] for name in kept.files}
        for cell in cells:
            path = out / "rows" / f"{cell.key()}.npy"
            if cell.role == "main" and path.exists():
                found[cell.key()] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise VitreousError(f"{path}: holds no outcomes of test images ({one_line(error)}); delete it") from error
    keys = {cell.key() for cell in cells if cell.arm in arms}
    return {key: bits for key, bits in found.items() if key in keys}


def write_outcomes(out: Path, outcomes: Mapping[str, NDArray[np.uint8]]) -> None:
    if outcomes:
        with atomic_file(out / OUTCOMES) as part, part.open("wb") as file:
            np.savez_compressed(file, **{key: outcomes[key] for key in sorted(outcomes)})  # type: ignore[arg-type]


# Verdicts --------------------------------------------------------------------------------------------------------------


def seed_effects(claim: Claim, rows: Sequence[Row]) -> dict[int, float]:
    """The effect of every seed that all arms of the claim have, in points."""
    measured = [row for row in rows if row["role"] == "main" and row.get(claim.value) is not None]
    values = {(row["arm"], row["seed"]): row[claim.value] for row in measured}
    seeds = sorted({seed for _, seed in values})
    complete = [seed for seed in seeds if all((arm, seed) in values for arm in claim.weights)]
    sums = {seed: sum(weight * values[arm, seed] for arm, weight in claim.weights.items()) for seed in complete}
    # Rounded, so that the last bits of a sum of equal accuracies are not taken for an effect.
    return {seed: round(100 * value - claim.minus, 9) for seed, value in sums.items()}


def primary_p(study: Study, rows: Sequence[Row]) -> float:
    """What enters Holm's correction: 1 for a study without enough seeds."""
    claim = study.claims[0]
    effects = list(seed_effects(claim, rows).values())
    if len(effects) < claim.seeds:
        return 1.0
    return equivalence_p(effects, MARGIN) if claim.kind == "equivalence" else paired_t(effects).p


def decide_claims(
    study: Study, sha256: str, rows: Sequence[Row], outcomes: Mapping[str, NDArray[np.uint8]], others: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The records of result.json, the primary claim first. `others`: p of the other studies' primary claims, where known."""
    adjusted = holm({**others, study.name: primary_p(study, rows)}, FAMILY)[study.name]
    records = []
    for number, claim in enumerate(study.claims):
        effects = seed_effects(claim, rows)
        values = list(effects.values())
        estimate = paired_t(values) if values else None
        interval = None if estimate is None or len(values) < 2 else [round(estimate.low, 3), round(estimate.high, 3)]
        image_interval = _bootstrap(claim, rows, outcomes, effects)
        records.append(
            {
                "claim": claim.text,
                "metric": claim.metric,
                "effect": None if estimate is None else round(estimate.effect, 3),
                "interval": interval,
                "p": None if estimate is None else equivalence_p(values, MARGIN) if claim.kind == "equivalence" else estimate.p,
                "p_holm": adjusted if number == 0 else None,
                "seeds": len(effects),
                "complete": len(effects) >= claim.seeds,
                "bootstrap": None if image_interval is None else [round(end, 3) for end in image_interval],
                "rule": claim.rule(primary=number == 0),
                "verdict": decide(claim, values, adjusted if number == 0 else None),
                "primary": number == 0,
                "study_sha256": sha256,
            }
        )
    return records


def decide(claim: Claim, effects: Sequence[float], adjusted: float | None) -> str:
    """The verdict by the claim's rule; `adjusted` is p after Holm's correction, of a primary claim."""
    n = len(effects)
    if n < SUPERIORITY_SEEDS:
        return "undecided"
    estimate = paired_t(effects)
    alike = n >= EQUIVALENCE_SEEDS and equivalence_p(effects, MARGIN) < 0.05
    if claim.kind == "equivalence":
        outside = estimate.low > MARGIN or estimate.high < -MARGIN
        return "no difference within 1 point" if alike else "contradicted" if outside else "undecided"
    significant = (estimate.p if adjusted is None else adjusted) < 0.05
    if significant and (estimate.effect >= claim.smallest or estimate.effect < 0):
        return "holds" if estimate.effect > 0 else "contradicted"
    return "no difference within 1 point" if alike else "undecided"


def _bootstrap(
    claim: Claim, rows: Sequence[Row], outcomes: Mapping[str, NDArray[np.uint8]], effects: Mapping[int, float]
) -> tuple[float, float] | None:
    """Over seeds and test images, where every arm's outcomes are known and the effect is one of accuracy."""
    cells = {(row["arm"], row["seed"]): row for row in rows if row["role"] == "main"}
    needed = [cells[arm, seed] for arm in claim.weights for seed in effects]
    if claim.value != "accuracy" or len(effects) < 2 or any(row["cell"] not in outcomes for row in needed):
        return None
    images = int(needed[0]["n"])
    if any(row["n"] != images or len(outcomes[row["cell"]]) != (images + 7) // 8 for row in needed):
        return None
    differences = np.zeros((len(effects), images))
    for place, seed in enumerate(effects):
        for arm, weight in claim.weights.items():
            bits = outcomes[cells[arm, seed]["cell"]]
            differences[place] += weight * np.unpackbits(bits, count=images).astype(np.float64)
    low, high = bootstrap(100 * differences)
    return low - claim.minus, high - claim.minus


def read_primary_p(folder: Path, name: str) -> float | None:
    """p of another study's primary claim, from its result.json beside this one; None where too little was run."""
    try:
        first = read_json(folder / name / RESULT)[0]
        p = float(first["p"])
        return p if first["complete"] and 0 <= p <= 1 else None
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def write_result(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    write_text(path, json.dumps(records, indent=1, ensure_ascii=False) + "\n")
