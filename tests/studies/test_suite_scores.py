"""Means, the choice of a sweep, the table and the chart, from planted results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.vtab_tasks import TASKS
from vitreous.inspection.figure_style import save
from vitreous.studies.run_suite import best_setting, claim_folder
from vitreous.studies.suite import Protocol, Suite, Task
from vitreous.studies.suite_summary import Summary, draw_summary, summarise
from vitreous.studies.suite_table import markdown, plain
from vitreous.studies.vtab import vtab_suite


def rows_of(suite: Suite, accuracies: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """In a mixed-up order, as a study that was interrupted leaves them."""
    rows = [
        {
            "arm": task.name, "group": task.group, "seed": seed, "accuracy": float(accuracies[number, seed]),
            "n_train": 1000, "n": task.test_images or 500, "seconds": 1.5, "mode": "finetune",
        }
        for number, task in enumerate(suite.tasks)
        for seed in range(accuracies.shape[1])
    ]  # fmt: skip
    return [rows[place] for place in np.random.default_rng(3).permutation(len(rows))]


def summary_of(suite: Suite, accuracies: np.ndarray[Any, Any], **options: Any) -> Summary:
    seeds = range(accuracies.shape[1])
    return summarise(suite, rows_of(suite, accuracies), seeds, **{"mode": "finetune", "checkpoint": "tiny", **options})


@pytest.fixture
def accuracies() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).uniform(0.2, 0.99, (19, 3))


def test_means_and_spreads_are_numpys(accuracies: np.ndarray[Any, Any]) -> None:
    found = summary_of(vtab_suite("d"), accuracies)
    assert found.mean.value == pytest.approx(accuracies.mean(), abs=1e-12)
    assert found.mean.spread == pytest.approx(accuracies.mean(axis=0).std(ddof=1), abs=1e-12)
    for group, part in (("natural", slice(0, 7)), ("specialized", slice(7, 11)), ("structured", slice(11, 19))):
        assert found.groups[group].value == pytest.approx(accuracies[part].mean(), abs=1e-12)
        assert found.groups[group].spread == pytest.approx(accuracies[part].mean(axis=0).std(ddof=1), abs=1e-12)
        paper = np.array([task.paper for task in vtab_suite("d").tasks[part]])
        np.testing.assert_allclose(found.groups[group].paper, paper.mean(axis=0), atol=1e-9)
    for number, score in enumerate(found.tasks):
        assert score.accuracies == tuple(accuracies[number])
        assert score.mean.value == pytest.approx(accuracies[number].mean(), abs=1e-12)
        assert score.mean.spread == pytest.approx(accuracies[number].std(ddof=1), abs=1e-12)
    np.testing.assert_allclose(found.mean.paper, (77.6, 76.3, 72.7), atol=0.05)  # as Table 9 prints it


def test_every_task_counts_alike_however_large_its_group() -> None:
    suite = Suite("s", (Task("a", "x", "g"), Task("b", "x", "h"), Task("c", "x", "h")), of=3)
    found = summary_of(suite, np.array([[1.0], [0.0], [0.5]]))
    assert found.mean.value == pytest.approx(0.5)
    assert {group: mean.value for group, mean in found.groups.items()} == {"g": 1.0, "h": 0.25}
    assert found.mean.record()["spread"] is None


def test_groups_stand_together_in_the_table() -> None:
    suite = Suite("s", (Task("a", "x", "g"), Task("b", "x", "h"), Task("c", "x", "g")), of=3)
    found = summary_of(suite, np.array([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]))
    assert [score.task.name for score in found.tasks] == ["a", "c", "b"]
    lines = [line.strip() for line in plain(found).splitlines()]
    assert [line.split()[:3] for line in lines if line.startswith(("a ", "b ", "c "))] == [
        ["a", "50.00", "35.36"],
        ["c", "50.00", "70.71"],
        ["b", "50.00", "0.00"],
    ]
    assert any(line.startswith("g, mean of 2") and line.split()[-2:] == ["50.00", "17.68"] for line in lines)
    assert "paper" not in plain(found)


def test_a_missing_result_is_never_averaged_over(accuracies: np.ndarray[Any, Any]) -> None:
    suite = vtab_suite("d")
    rows = [row for row in rows_of(suite, accuracies) if (row["arm"], row["seed"]) != ("pets", 1)]
    with pytest.raises(KeyError):
        summarise(suite, rows, range(3), mode="finetune", checkpoint="tiny")


def test_the_table_says_what_it_is_a_mean_of(accuracies: np.ndarray[Any, Any]) -> None:
    whole = plain(summary_of(vtab_suite("d"), accuracies))
    assert "mean of 19 " in whole
    assert "not the paper's protocol" not in whole
    assert f"{100 * accuracies.mean():.2f}" in whole
    row = next(line for line in whole.splitlines() if line.strip().startswith("Pets"))
    assert row.split()[-3:] == ["97.2", "96.7", "92.7"]
    some = summary_of(vtab_suite("d", ("pets", "kitti")), accuracies[:2])
    assert "mean of 2 of 19" in plain(some)
    assert "mean of 19 " not in plain(some)
    last = some.records()[-1]
    assert (last["task"], last["tasks"], last["of"]) == ("mean", 2, 19)
    assert last["paper"]["ViT-H/14 (JFT)"] == pytest.approx((97.2 + 84.5) / 2)


def test_what_departs_from_the_papers_protocol_is_said(accuracies: np.ndarray[Any, Any]) -> None:
    from dataclasses import replace

    suite = vtab_suite("d")
    assert summary_of(suite, accuracies).departures() == ()
    shorter = replace(suite, protocol=Protocol().at(steps=100, image_size=(224, 224)))
    said = "; ".join(summary_of(shorter, accuracies[:, :1], changes={"dropout": "0.1"}).departures())
    assert "steps 100, where the paper has 2,500" in said
    assert "image_size 224x224, where the paper has 384x384" in said
    assert "--set dropout=0.1" in said
    assert "1 seed, where the paper has 3" in said
    assert "closed form" in summary_of(suite, accuracies[:, :1], mode="linear").departures()[0]
    rows = rows_of(suite, accuracies)
    for row in rows:
        row["n"] = 7 if row["arm"] == "pets" else row["n"]
    fewer = summarise(suite, rows, range(3), mode="finetune", checkpoint="tiny")
    assert fewer.departures() == ("Pets: 7 test images of the 3,669 published",)


def test_markdown_has_a_cell_for_every_figure(accuracies: np.ndarray[Any, Any]) -> None:
    from dataclasses import replace

    suite = vtab_suite("d")
    suite = replace(suite, tasks=(replace(suite.tasks[0], title="a|b"), *suite.tasks[1:]))
    lines = [line for line in markdown(summary_of(suite, accuracies)).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 19 + 3 + 1
    assert {line.replace("\\|", "").count("|") for line in lines} == {7}
    assert lines[2].startswith("| a\\|b |")


def test_records_are_json_one_for_each_task_and_one_mean(accuracies: np.ndarray[Any, Any]) -> None:
    found = json.loads(json.dumps(summary_of(vtab_suite("d"), accuracies).record()))
    assert [record["task"] for record in found["tasks"]] == [task.name for task in TASKS]
    assert found["mean"]["groups"].keys() == {"natural", "specialized", "structured"}
    assert found["tasks"][4]["accuracies"] == accuracies[4].tolist()


@pytest.mark.parametrize("names", [(), ("pets",)])
def test_the_chart_is_a_image_and_the_same_each_time(
    names: tuple[str, ...], accuracies: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    suite = vtab_suite("d", names)
    found = summary_of(suite, accuracies[: len(suite.tasks)], checkpoint="costs $5 and $6_")
    for folder in ("a", "b"):
        save(draw_summary(found), tmp_path / folder, "vtab")
    for name in ("vtab.png", "vtab.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    text = "".join(ET.parse(tmp_path / "a" / "vtab.svg").getroot().itertext())
    for task in suite.tasks:
        assert task.shown in text
    assert found.counted in text
    assert "costs $5 and $6_" in text
    assert "ViT-H/14 (JFT)" in text
    with Image.open(tmp_path / "a" / "vtab.png") as image:
        assert min(image.size) > 400


# The sweep -------------------------------------------------------------------------------------------------------------


def planted(scores: dict[tuple[float, int], dict[str, float]]) -> list[dict[str, Any]]:
    return [
        {"arm": task, "lr": lr, "steps": steps, "accuracy": accuracy}
        for (lr, steps), own in scores.items()
        for task, accuracy in own.items()
    ]


def test_one_setting_for_all_tasks_by_the_mean_not_by_wins() -> None:
    scores = {
        (0.003, 10): {"a": 0.6, "b": 0.6, "c": 0.0},  # wins twice
        (0.01, 10): {"a": 0.5, "b": 0.5, "c": 0.5},
        (0.01, 50): {"a": 0.1, "b": 0.1, "c": 0.9},
    }
    assert best_setting(planted(scores), ["a", "b", "c"]) == (0.01, 10)
    assert best_setting(planted(scores), ["a", "b"]) == (0.003, 10)
    assert best_setting(planted(scores), ["c"]) == (0.01, 50)


def test_of_equal_settings_the_shorter_then_the_slower_one() -> None:
    same = {(lr, steps): {"a": 0.5} for lr in (0.01, 0.003) for steps in (50, 10)}
    assert best_setting(planted(same), ["a"]) == (0.003, 10)


def test_a_setting_that_some_task_has_not_tried_is_not_chosen() -> None:
    scores = {(0.01, 10): {"a": 0.9}, (0.003, 10): {"a": 0.1, "b": 0.1}}
    assert best_setting(planted(scores), ["a", "b"]) == (0.003, 10)


# Results on disk -------------------------------------------------------------------------------------------------------


def test_a_folder_belongs_to_one_study(tmp_path: Path) -> None:
    study = {"mode": "linear", "protocol": {"steps": 3}, "tasks": {"a": {"crop": True}}, "arguments": {"checkpoint": "here"}}
    claim_folder(tmp_path / "out", study)
    claim_folder(tmp_path / "out", {**study, "arguments": {"checkpoint": "there"}})
    claim_folder(tmp_path / "out", {**study, "tasks": {"b": {"crop": True}}})
    kept = json.loads((tmp_path / "out" / "study.json").read_text())
    assert kept["tasks"].keys() == {"a", "b"}
    with pytest.raises(VitreousError, match=r"protocol.steps: 3 there, 4 now"):
        claim_folder(tmp_path / "out", {**study, "protocol": {"steps": 4}})
    with pytest.raises(VitreousError, match=r"tasks.a.crop: true there, false now"):
        claim_folder(tmp_path / "out", {**study, "tasks": {"a": {"crop": False}}})
    assert json.loads((tmp_path / "out" / "study.json").read_text()) == kept
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(VitreousError, match="is not empty and no study"):
        claim_folder(tmp_path / "other", study)
    with pytest.raises(VitreousError, match="is a file"):
        claim_folder(tmp_path / "other" / "thesis.tex", study)
    (tmp_path / "out" / "study.json").write_text("{")
    with pytest.raises(VitreousError, match="cannot be read"):
        claim_folder(tmp_path / "out", study)
