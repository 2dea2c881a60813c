"""Calibration, against the definition written out bin by bin."""

from __future__ import annotations

import numpy as np
import pytest

from vitreous.evaluation.calibration import compute_calibration, describe_confidence_gap


def drawn(n: int = 5000, power: float = 2.0) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(3)
    sure = rng.uniform(0.1, 1, n).astype(np.float32)
    return sure, rng.uniform(size=n) < sure**power  # too sure


def test_the_definition() -> None:
    sure, right = drawn()
    error, rows = 0.0, []
    for k in range(15):
        own = (sure > k / 15) & (sure <= (k + 1) / 15)
        rows.append((own.sum(), sure[own].astype(float).mean() if own.any() else 0, right[own].mean() if own.any() else 0))
        error += rows[-1][0] / len(sure) * abs(rows[-1][1] - rows[-1][2])
    found = compute_calibration(sure, right)
    assert found.ece == pytest.approx(error, abs=1e-9)
    assert [one["n"] for one in found.bins] == [row[0] for row in rows]
    assert [one["confidence"] for one in found.bins] == pytest.approx([row[1] for row in rows])
    assert [one["accuracy"] for one in found.bins] == pytest.approx([row[2] for row in rows])
    assert found.confidence == pytest.approx(sure.mean(), rel=1e-5)
    assert found.accuracy == pytest.approx(right.mean())
    assert found.brier == pytest.approx(np.mean((sure.astype(float) - right) ** 2))
    in_order = np.argsort(sure, kind="stable")
    parts = np.array_split(in_order, 15)
    mass = sum(len(part) / len(sure) * abs(sure[part].astype(float).mean() - right[part].mean()) for part in parts)
    assert found.ece_equal_mass == pytest.approx(mass, abs=1e-9)
    gap = 100 * (sure.mean() - right.mean())
    assert describe_confidence_gap(found.confidence, found.accuracy) == f"on the whole overconfident, by {gap:.1f} points"


def test_a_calibrated_model_has_little_error() -> None:
    sure, right = drawn(50_000, power=1.0)
    found = compute_calibration(sure, right)
    assert found.ece < 0.01 < compute_calibration(*drawn(50_000)).ece
    assert describe_confidence_gap(found.confidence, found.accuracy) == "on the whole as confident as it is accurate"
    assert describe_confidence_gap(0.85, 0.9) == "on the whole underconfident, by 5.0 points"


def test_the_edges_of_bins() -> None:
    """1 is in the last bin, 0 in the first, and an inner edge belongs to the bin below it."""
    found = compute_calibration(np.array([0.0, 0.5, 1.0, 1.0]), np.array([False, True, True, False]), bins=2)
    assert [one["n"] for one in found.bins] == [2, 2]
    assert found.ece == pytest.approx((abs(0.5 - 1) + abs(2 - 1)) / 4)
    (first, *_) = found.bins
    assert first == {"low": 0.0, "high": 0.5, "n": 2, "confidence": 0.25, "accuracy": 0.5}
