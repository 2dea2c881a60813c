"""The demo's steps are real: what they report is what was computed, and their images exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.classifier import load
from vitreous.commands import demo
from vitreous.commands.demo import data_steps as demo_data
from vitreous.commands.demo import inspection_steps as demo_looking
from vitreous.commands.demo import model_steps as demo_steps
from vitreous.commands.demo import training_steps as demo_training
from vitreous.commands.training_run import Run
from vitreous.core.errors import VitreousError
from vitreous.data.open import open_data
from vitreous.weights.checkpoint import write_checkpoint

from conftest import random_checkpoint


def test_formats_are_all_equal(tmp_path: Path) -> None:
    rows = demo_steps.formats(tmp_path)
    assert [row["format"] for row in rows] == ["vitreous", "official", "timm", "huggingface"]
    assert all(row["equal"] and row["operations compared"] > 30 for row in rows)


def test_digits_are_classified_by_the_saved_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = demo_steps.digits(tmp_path, open_data("builtin:digits"))
    accuracy = float((found.predictions == found.labels).float().mean())
    assert accuracy > 0.85  # ten classes: chance is 0.1
    again = load(tmp_path / "checkpoint").predict([tmp_path / "images" / f"{i}.png" for i in range(10)], top=1)
    assert [int(p.classes[0]) for p in again] == found.predictions[:10].tolist()
    for picture in (
        demo_steps.draw_digits(found, tmp_path / "digits.png"),
        demo_steps.draw_positions(tmp_path / "positions.png"),
    ):
        with Image.open(picture) as image:
            assert min(image.size) > 300


def test_the_doctor_finds_what_was_planted_and_nothing_else(tmp_path: Path) -> None:
    planted = demo_data.faulty_folder(tmp_path / "photos")
    rows = demo_data.doctor_finds(tmp_path / "photos", tmp_path / "doctor", planted)
    assert len(rows) == len(planted) + 1
    assert [row["planted"] for row in rows if not row["found"]] == []
    assert (tmp_path / "doctor" / "report.html").stat().st_size > 10_000
    assert [row["equal"] for row in demo_data.batches(tmp_path / "photos")] == [None, True, True]


def test_the_demo_removes_nobodys_photos(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.jpg").write_bytes(b"precious")
    with pytest.raises(VitreousError, match="photos: is there already and not the demo's"):
        demo._own_folder(tmp_path / "photos")
    assert (tmp_path / "photos" / "mine.jpg").read_bytes() == b"precious"
    made = demo._own_folder(tmp_path / "other")
    (made / "x").touch()
    assert not (demo._own_folder(made) / "x").exists()


def _demo(**changed: list[dict[str, Any]]) -> demo.Demo:
    """One row in each table, all well, and a run that nothing was compared with."""
    rows: dict[str, Any] = {name: [{"equal": True}] for name in demo.TITLES}
    rows |= {"models": [{"model": "ViT-B/16"}], "digits": [{"images": 1}], "faults": [{"found": True}]}
    rows["runs"] = [{"run": "alone", "equal": None}, {"run": "killed", "equal": True}]
    return demo.Demo({**rows, **changed}, pictures=(), seconds=1.0)


def test_what_was_not_compared_is_neither_equal_nor_a_failure() -> None:
    found = _demo()
    assert found.exit_code == 0
    printed = [line.split() for line in found.text().splitlines()]
    assert ["alone", "-"] in printed
    assert ["killed", "yes"] in printed
    written = json.loads(json.dumps(found.records()))
    assert written[0]["digits"] == {"images": 1}
    assert [row["equal"] for row in written[0]["runs"]] == [None, True]


@pytest.mark.parametrize("part", ["formats", "batches", "runs", "measured", "looked"])
@pytest.mark.parametrize("differs", [False, np.False_])
def test_a_comparison_that_fails_is_a_failure_of_the_demo(part: str, differs: object) -> None:
    assert _demo(**{part: [{"equal": None}, {"equal": differs}, {"equal": True}]}).exit_code == 1


def test_a_fault_that_is_not_found_is_a_failure_of_the_demo() -> None:
    assert _demo(faults=[{"found": True}, {"found": False}]).exit_code == 1


def test_a_run_by_itself_is_compared_with_nothing(tmp_path: Path) -> None:
    config = {"recipe": {"objective": "classification"}, "data": {"train": 9}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = Run(str(tmp_path), {"top1": 0.5, "steps": 3, "seconds": 1.0}, already=False)
    assert demo_training._shown("alone", run)["equal"] is None


def test_pictures_of_data(tmp_path: Path) -> None:
    for draw in (demo_data.draw_rendered, demo_data.draw_augmentations):
        with Image.open(draw(tmp_path / "x.png")) as image:
            assert min(image.size) > 300


def test_the_runs_are_drawn_from_their_metrics(tmp_path: Path) -> None:
    for name, right in (("scratch", 0.9), ("scratch-10", 0.5), ("masked-10", 0.6), ("letters-10", 0.8)):
        (tmp_path / name).mkdir()
        records = [{"split": "train", "seconds": s, "loss": 2.0 / (1 + s)} for s in range(5)] + [
            {"split": "validation", "top1": right}
        ]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    first = demo_training.draw_runs(tmp_path, tmp_path / "runs.png").read_bytes()
    (tmp_path / "scratch" / "metrics.jsonl").write_text(
        '{"split": "train", "seconds": 1, "loss": 1}\n{"split": "test", "top1": 0.1}\n'
    )
    assert demo_training.draw_runs(tmp_path, tmp_path / "runs.png").read_bytes() != first


def test_a_server_of_its_own_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "runs" / "scratch"
    run.mkdir(parents=True)
    write_checkpoint(
        random_checkpoint("ViT-Ti/2", classes=3, image_size=8, width=16, depth=2, heads=2, mlp=32), run / "checkpoint"
    )
    (run / "config.json").write_text("{}")
    (run / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1.0}\n')
    picture = tmp_path / "0.png"
    Image.new("RGB", (8, 8), (200, 40, 90)).save(picture)
    rows = list(demo_looking._asked(run.parent, picture))
    assert [row["equal"] for row in rows] == [True, True, True]
    assert "2 layers x 2 heads x 17 tokens" in rows[1]["result"]
    other = tmp_path / "1.png"
    Image.new("RGB", (8, 8), (10, 200, 90)).save(other)
    ask = demo_looking._request
    monkeypatch.setattr(
        demo_looking, "_request", lambda url, image=None: ask(url, None if image is None else other.read_bytes())
    )
    assert [row["equal"] for row in demo_looking._asked(run.parent, picture)] == [False, False, True]
