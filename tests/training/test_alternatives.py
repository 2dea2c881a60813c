"""A budget chooses the image size: the largest with which each image is seen often enough, and a resumed run keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from runs import digest

import vitreous
from vitreous.classifier import Classifier
from vitreous.core.progress import silence
from vitreous.models.cost import cost

from conftest import random_checkpoint

MODEL: dict[str, Any] = dict(width=24, depth=1, heads=2, mlp=32)
BATCH = 8


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """16 images to train on and two to validate on, of sizes of their own."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for split, images in (("train", 16), ("validation", 2)):
        for number in range(images):
            path = folder / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 255, (70 + number, 90, 3), np.uint8)).save(path)
    return str(folder)


def save(path: Path, side: int) -> str:
    string = f"resize({side})|range(-1,1)"
    Classifier(random_checkpoint("ViT-Ti/16", preprocess=string, classes=3, image_size=side, **MODEL)).save(path)
    return str(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("checkpoint") / "vit"
    return save(path, 224)


def run(command: str, data: str, out: Path, **options: Any) -> dict[str, Any]:
    given = dict(batch_size=BATCH, workers=0, device="cpu", precision="float32") | options
    with silence():
        getattr(vitreous, command)(data, out=str(out), **given)
    return dict(json.loads((out / "config.json").read_text()))


def flops_of(side: int, steps: float) -> float:
    return steps * cost("ViT-Ti/16", image_size=side, classes=2, **MODEL).training_flops(BATCH)


@pytest.mark.parametrize(("side", "steps", "expected"), [(224, 4, 224), (224, 3.5, 160), (160, 3.5, 112), (112, 1, 112)])
def test_fine_tuning_takes_the_largest_size_that_the_budget_shows_twice(
    side: int, steps: float, expected: int, photos: str, checkpoint: str, tmp_path: Path
) -> None:
    """Four steps of eight are twice sixteen images."""
    config = run("finetune", photos, tmp_path / "run", from_=checkpoint, flops=flops_of(side, steps))
    assert config["model"]["image_size"] == [expected, expected]
    assert f"({expected}" in config["recipe"]["evaluation"]
    assert any(
        line.startswith(f"image size {expected}: of 224, 160, 112 the largest at which the budget shows 32 images, or")
        for line in config["decisions"]
    )
    assert vitreous.load(str(tmp_path / "run")).evaluation_size == (expected, expected)


def test_a_size_that_is_given_stays_and_so_does_the_checkpoints_own_without_a_budget(
    photos: str, checkpoint: str, tmp_path: Path
) -> None:
    budget = flops_of(112, 1)
    given: list[dict[str, Any]] = [
        dict(flops=flops_of(192, 1), image_size=192),
        dict(flops=flops_of(192, 1), preprocess="inception_crop(192)|range(-1,1)"),
        dict(steps=1),
    ]
    for number, options in enumerate(given):
        config = run("finetune", photos, tmp_path / f"{number}", from_=checkpoint, **options)
        assert config["model"]["image_size"] == ([224, 224] if "steps" in options else [192, 192])
    small = save(tmp_path / "small", 96)
    assert run("finetune", photos, tmp_path / "run", from_=small, flops=budget)["model"]["image_size"] == [96, 96]


def test_a_run_keeps_its_size_when_it_is_resumed_extended_or_replayed(photos: str, checkpoint: str, tmp_path: Path) -> None:
    first = dict(from_=checkpoint, flops=flops_of(160, 4))
    run("finetune", photos, tmp_path / "run", **first)
    before = digest(tmp_path / "run")
    assert run("finetune", photos, tmp_path / "run", **first)["model"]["image_size"] == [160, 160]
    assert digest(tmp_path / "run") == before
    replayed = tmp_path / "replayed"
    with silence():
        vitreous.finetune(out=str(replayed), config=str(tmp_path / "run"), workers=0)
    assert digest(replayed) == before
    longer = dict(from_=checkpoint, flops=flops_of(224, 5), extend=True)
    assert run("finetune", photos, tmp_path / "run", **longer)["model"]["image_size"] == [160, 160]


def test_from_scratch_photographs_are_made_smaller_for_a_small_budget(photos: str, tmp_path: Path) -> None:
    config = run("pretrain", photos, tmp_path / "run", flops=2e11)
    assert (config["model"]["name"], config["model"]["image_size"]) == ("C5x16r+ViT-256x2/16", [64, 64])
    assert any(line.startswith("image size 64: of 224, 160, 112, 64 the largest") for line in config["decisions"])
