"""`vitreous finetune --train head`: it starts from the closed form, on features computed once, and does not end below it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from vitreous.classifier import Classifier
from vitreous.models.vit import ViT
from vitreous.training import timing

from conftest import random_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    torch.manual_seed(0)
    sizes = dict(width=24, depth=1, heads=3, mlp=48, image_size=8, classes=10, channels=1)
    Classifier(random_checkpoint("ViT-Ti/2", preprocess="resize(8)|range(-1,1)", **sizes)).save(tmp_path / "checkpoint")
    return str(tmp_path / "checkpoint")


def probe(checkpoint: str, out: Path, **options: Any) -> Any:
    given = dict(train="head", subset=200, steps=6, batch_size=64, eval_every=3, workers=0, device="cpu") | options
    return vitreous.finetune("builtin:digits", from_=checkpoint, out=str(out), **given)


def evaluations(out: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] != "train"]


def test_it_starts_from_the_closed_form_and_keeps_it_where_training_is_no_better(checkpoint: str, tmp_path: Path) -> None:
    probe(checkpoint, tmp_path / "run", set=("lr=100",))  # so large that every step makes it worse
    first, *later = evaluations(tmp_path / "run")
    assert first["step"] == 0
    assert first["top1"] > 0.5 > max(line["top1"] for line in later)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "the head starts from the closed form" in log
    assert "training did not improve on the closed-form head" in log
    clf = vitreous.load(tmp_path / "run")
    assert clf.checkpoint.metrics["top1"] == pytest.approx(first["top1"])
    assert clf.checkpoint.metrics["step"] == 0
    (found,) = vitreous.evaluate(tmp_path / "run", "builtin:digits", workers=0).records()
    assert found["top1"] > 0.5


def test_a_better_step_is_the_result(checkpoint: str, tmp_path: Path) -> None:
    probe(checkpoint, tmp_path / "run", steps=60, eval_every=20, set=("lr=0.003",))
    scores = {line["step"]: line["top1"] for line in evaluations(tmp_path / "run")}
    assert set(scores) == {0, 20, 40, 60}
    assert vitreous.load(tmp_path / "run").checkpoint.metrics["top1"] == pytest.approx(max(scores.values()))


def test_the_backbone_runs_once_for_each_image(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    seen: list[int] = []
    whole = ViT.embed
    monkeypatch.setattr(ViT, "embed", lambda self, images: (seen.append(len(images)), whole(self, images))[1])
    probe(checkpoint, tmp_path / "run", steps=30, eval_every=10, micro_batch=64)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (last,) = [line for line in evaluations(tmp_path / "run") if line["step"] == 30]
    # Training and held-out images once for their features, and the held-out ones again with their pixels at the end (twice
    # where there is a test split), though 30 batches of 64 and four evaluations were made.
    assert sum(seen) < 30 * 64
    assert config["recipe"]["train"] == "head"
    assert last["n"] > 0


def test_features_give_the_run_that_images_give(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.training import closed_form_start

    probe(checkpoint, tmp_path / "features", set=("lr=0.01",))
    monkeypatch.setattr(closed_form_start, "features_are_fixed", lambda config, loop: False)
    probe(checkpoint, tmp_path / "images", set=("lr=0.01",))
    one, two = (vitreous.load(tmp_path / name).model.head.weight for name in ("features", "images"))
    assert torch.allclose(one, two, rtol=1e-3, atol=1e-4)


def test_random_preprocessing_is_not_kept(checkpoint: str, tmp_path: Path) -> None:
    probe(checkpoint, tmp_path / "run", preprocess="resize(10)|random_crop(8)|range(-1,1)")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "the head starts from the closed form" in log
    assert "features of each image are computed once" not in log


def test_minutes_count_features_once_and_evaluate_them_for_nothing(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def measure(*given: Any) -> timing.Pace:
        measured.append(measure_pace(*given))
        return timing.Pace(0.01, 0.005, 1, measured[-1].fixed)

    measure_pace = timing.measure_pace
    monkeypatch.setattr(timing, "measure_pace", measure)
    run = probe(checkpoint, tmp_path / "run", steps=None, minutes=0.1, eval_every=None)
    # Of 6 s, 200 training images and the 200 held-out ones, twice, take 3 s: as features, and at the end as images.
    assert run.steps == 300
    assert [line["step"] for line in evaluations(tmp_path / "run")] == list(range(0, 301, 30))
    assert measured[0].fixed
