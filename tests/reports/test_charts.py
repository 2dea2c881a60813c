"""Charts of the reports: a point lies where the axis says, a spike survives thinning, a gap stays a gap."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from html_page import Page
from vitreous.reports.charts import Curve, line_chart
from vitreous.reports.series import read_series, running_mean, thin


def draw(title: str, curves: list[Curve], **options: Any) -> str:
    drawn = line_chart(title, curves, **options)
    assert drawn is not None
    return drawn


def test_a_thinned_curve_keeps_ends_extremes_and_order() -> None:
    rng = np.random.default_rng(1)
    steps = np.arange(50_000, dtype=np.float64)
    values = rng.normal(size=50_000)
    values[31_337], values[77], values[2000:4000] = 99, -99, np.nan
    few, kept = thin(steps, values)
    assert len(few) <= 1000
    assert (np.diff(few) > 0).all()
    assert (few[0], few[-1]) == (0, 49_999)
    assert np.nanmax(kept) == 99
    assert np.nanmin(kept) == -99
    assert np.isnan(kept).any()  # the gap is still one
    np.testing.assert_array_equal(kept, values[few.astype(int)])
    same, _ = thin(steps[:1000], values[:1000])
    assert len(same) == 1000


def test_the_running_mean_is_that_of_its_neighbours() -> None:
    values = np.array([1.0, np.nan, 4.0, 10.0, np.inf, np.nan, np.nan, np.nan, 3.0])
    finite = np.where(np.isfinite(values), values, np.nan)
    expected = [np.nanmean(w) if np.isfinite(w := finite[max(0, k - 1) : k + 2]).any() else np.nan for k in range(9)]
    np.testing.assert_allclose(running_mean(values, 1), expected)


def test_a_step_recorded_twice_counts_once_and_the_later_record_wins() -> None:
    history = [
        dict(step=2, split="train", loss=1.0),
        dict(step=1, split="train", loss=5),
        dict(step=2, split="train", loss=3.0),
    ]
    history += [dict(step=3, split="validation", loss=9.0), dict(step=4, split="train", loss=None), dict(step=4, split="train")]
    steps, values = read_series(history, "loss", "train")
    np.testing.assert_array_equal(steps, [1, 2, 4])
    np.testing.assert_array_equal(values, [5, 3, np.nan])


@pytest.mark.parametrize("logarithmic", [False, True])
def test_points_lie_where_the_axis_says(logarithmic: bool) -> None:
    """The labels of the axis are read back from the drawing, and the curve by them."""
    values = np.array([100.0, 1.0, 10.0, 0.5])
    drawn = draw("Loss", [Curve("train", np.array([0.0, 10, 20, 40]), values)], logarithmic=logarithmic)
    assert ("(logarithmic)" in drawn) == logarithmic
    ticks = re.findall(r'x="50" y="([\d.]+)" text-anchor="end">([\d.,e-]+)<', drawn)
    heights = np.array([float(y) - 4 for y, _ in ticks])
    labels = np.array([float(label.replace(",", "")) for _, label in ticks])
    assert len(labels) >= 3
    scale = np.log(labels) if logarithmic else labels
    slope, offset = np.polyfit(scale, heights, 1)
    path = re.search(r'<path class="curve c0" d="M([^"]+)"', drawn)
    assert path
    found = np.array([[float(part) for part in pair.split()] for pair in path[1].split("L")])
    np.testing.assert_allclose(found[:, 1], slope * (np.log(values) if logarithmic else values) + offset, atol=0.25)
    assert np.diff(found[:, 0]) / np.diff(found[:, 0])[0] == pytest.approx([1, 1, 2], abs=0.01)


def test_what_is_not_finite_leaves_a_gap_and_a_lone_point_is_seen() -> None:
    values = np.array([1.0, 2.0, np.nan, 3.0, np.inf, 5.0, 4.0])
    drawn = draw("Loss", [Curve("train", np.arange(7.0), values)])
    path = re.search(r'<path class="curve c0" d="([^"]+)"', drawn)
    assert path
    assert path[1].count("M") == 3
    assert path[1].count("L") == 2
    assert drawn.count("<circle") == 1
    carried = json.loads(Page(drawn).of("svg")[0]["data-chart"] or "")
    assert carried["series"][0]["points"] == [[0, 1], [1, 2], [3, 3], [5, 5], [6, 4]]


@pytest.mark.parametrize(
    "values", [[0.0], [1.0, 1.0], [-3.0, -3.0], [1e-300, 1e300], [0.1, 3e38], [5e-324, 1.0], [-1e300, 1e300]]
)
@pytest.mark.parametrize("percent", [False, True])
def test_odd_ranges_can_be_drawn(values: list[float], percent: bool) -> None:
    drawn = draw("x", [Curve("a", np.arange(len(values), dtype=float), np.array(values))], logarithmic=True, percent=percent)
    heights = [float(y) for y in re.findall(r'(?:cy="|[ML][\d.]+ )([-\d.]+)', drawn)]
    assert heights
    assert all(9 <= y <= 217 for y in heights)


def test_nothing_to_draw_draws_nothing() -> None:
    assert line_chart("Loss", []) is None
    assert line_chart("Loss", [Curve("train", np.array([1.0]), np.array([np.nan]))]) is None
