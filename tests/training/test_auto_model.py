"""`--model auto`: what it chooses, that it says why, and that a resumed run keeps it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL, digest

import vitreous
from vitreous.core.progress import silence
from vitreous.models.cost import compute_cost, cost
from vitreous.models.names import parse_name
from vitreous.training import timing
from vitreous.training.auto_model import MEASURED, auto_models, expectation
from vitreous.training.timing import Pace


def pretrain(out: Path, **changes: Any) -> Any:
    options = {**SMALL, "model": None, "set": (), **changes}
    with silence():
        return vitreous.pretrain(out=str(out), **options)


@pytest.mark.parametrize("side", [8, 12, 16, 28, 32, 48, 64])
@pytest.mark.parametrize("images", [100, 12_000, 50_000, 1_000_000])
def test_every_candidate_is_a_model_with_few_places(side: int, images: int) -> None:
    names, _ = auto_models((side, side), images)
    sizes = [cost(name, image_size=side, classes=10).macs for name in names]
    assert sizes == sorted(sizes, reverse=True)
    for name in names:
        config = parse_name(name, image_size=side)
        assert config.name == name
        assert 3 <= config.grid[0] <= 6  # type: ignore[union-attr]
    plain, _ = auto_models((side, side), images, masks_patches=True)
    assert all(not parse_name(name, image_size=side).stem for name in plain)  # type: ignore[union-attr]


@pytest.mark.parametrize(("side", "places"), [(96, 12), (112, 14), (128, 16), (160, 10), (224, 14), (300, 10)])
def test_photographs_have_a_stem_too_unless_there_are_very_many(side: int, places: int) -> None:
    names, _ = auto_models((side, side), 1_000)
    for name in names:
        config = parse_name(name, image_size=side)
        assert (config.name, bool(config.stem), config.grid) == (name, True, (places, places))  # type: ignore[union-attr]
    assert auto_models((side, side), 1_000_000)[0] == ("ViT-B/16",)
    assert auto_models((side, side), 1_000, masks_patches=True)[0] == ("ViT-B/16",)


def test_a_smaller_budget_gets_a_smaller_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("C2x32+ViT-64x2/2", "C2x16+ViT-32x2/2")
    monkeypatch.setattr("vitreous.training.alternatives.auto_models", lambda *given: (names, "two"))
    each = cost(names[0], image_size=8, classes=10, channels=1).training_flops(32)  # a batch of the 200 images
    ten = math.ceil(10 * 200 / 32)
    chosen = {}
    for steps in (ten, ten - 1):
        pretrain(tmp_path / f"{steps}", steps=None, flops=steps * each)
        chosen[steps] = json.loads((tmp_path / f"{steps}" / "config.json").read_text())["model"]["name"]
    assert chosen == {ten: names[0], ten - 1: names[1]}


def test_what_to_expect_is_the_nearest_run_that_was_measured() -> None:
    config = parse_name("C4x16r+ViT-128x2/8", image_size=32, classes=10)
    each = compute_cost(config).training_flops(1)
    for row in MEASURED:
        if row.side == 32:
            told = expectation(config, row.images, row.flops / each)
            assert told is not None
            assert told.endswith(f"reached {row.accuracy:.1%} with {row.flops:.2g}")
    assert expectation(parse_name("ViT-Ti/16", classes=10), 1_000, 1e4) is None


def test_pretraining_on_digits_without_a_model_has_a_stem_and_says_why(tmp_path: Path) -> None:
    pretrain(tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["model"]["stem"], config["model"]["width"], config["model"]["channels"]) == ([32, 64], 64, 1)
    assert (config["recipe"]["optimizer"], config["recipe"]["schedule"]) == ("muon", "linear")
    assert any(line.startswith("model C2x32r+ViT-64x2/2: a residual stem in 2 stages") for line in config["decisions"])
    each = cost("C2x32r+ViT-64x2/2", image_size=8, classes=10, channels=1).training_flops(12 * 32)
    assert any(
        line.startswith(f"{each:.2g} FLOPs in all") and "digits (1,097 images of 8" in line for line in config["decisions"]
    )
    assert pretrain(tmp_path / "run").already
    pretrain(tmp_path / "replayed", steps=None, batch_size=None, config=str(tmp_path / "run"))
    assert digest(tmp_path / "run") == digest(tmp_path / "replayed")


def test_minutes_choose_the_largest_model_that_is_fast_enough_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {256: 0.5, 128: 0.03, 32: 0.01}  # not one step, too few, enough
    monkeypatch.setattr(timing, "measure_pace", lambda config, world: Pace(seconds[config.model.width], 9e-5, 1))
    names = ("C2x128+ViT-256x2/2", "C2x64+ViT-128x2/2", "C2x16+ViT-32x2/2")
    monkeypatch.setattr("vitreous.training.alternatives.auto_models", lambda *given: (names, "three"))
    asked: dict[str, Any] = dict(steps=None, minutes=0.02, eval_every=None)
    run = pretrain(tmp_path / "run", **asked)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"]["name"] == "C2x16+ViT-32x2/2"
    assert run.steps == int((1.2 - 6 * 200 * 9e-5) / 0.01)  # six evaluations of 200 images take a tenth
    monkeypatch.delattr(timing, "measure_pace")
    assert pretrain(tmp_path / "run", **asked).steps == run.steps


def test_a_named_model_keeps_adam_and_the_paper_s_recipes(tmp_path: Path) -> None:
    pretrain(tmp_path / "run", model="ViT-64x2/4", steps=2)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["recipe"]["optimizer"], config["recipe"]["schedule"]) == ("adam", "cosine")
