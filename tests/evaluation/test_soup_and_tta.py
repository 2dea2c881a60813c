"""`evaluate --tta flip` and `--soup`: against a computation by hand; off by default, and said where they are on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vitreous
from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inference.runner import Runner

from conftest import random_checkpoint

DIGITS = tuple("0123456789")


def save(path: Path, seed: int = 0, names: tuple[str, ...] = DIGITS, **changes: Any) -> str:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = dict(width=24, depth=1, heads=3, mlp=48, image_size=8, classes=len(names), channels=1) | changes
    Classifier(random_checkpoint("ViT-Ti/2", names=names, preprocess="resize(8)|range(-1,1)", **sizes)).save(path)
    return str(path)


def test_flipped_outputs_are_means_over_both_images(tmp_path: Path) -> None:
    model, images = vitreous.load(save(tmp_path / "a")).model, torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        expected = (model(images) + model(images.flip(-1))) / 2
    with Runner(model, flip=True) as runner:
        assert torch.allclose(runner.run(images).logits, expected, atol=1e-5)
    with Runner(model) as runner:
        assert torch.allclose(runner.run(images).logits, model(images), atol=1e-5)


def test_tta_is_off_by_default_and_said_where_it_is_on(tmp_path: Path) -> None:
    name = save(tmp_path / "a")
    plain = vitreous.evaluate(name, "builtin:digits", workers=0)
    flipped = vitreous.evaluate(name, "builtin:digits", workers=0, tta="flip", out=str(tmp_path / "out"))
    ((off,), (on,)) = (list(result.records()) for result in (plain, flipped))
    assert "tta" not in off
    assert on["tta"] == "flip"
    assert on["loss"] != off["loss"]
    assert "mirror image" in flipped.text()
    assert "mirror image" not in plain.text()
    assert "mirror image" in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["tta"] == "flip"


def test_a_soup_is_the_mean_of_the_weights_and_can_be_kept(tmp_path: Path) -> None:
    names = [save(tmp_path / letter, seed) for seed, letter in enumerate("abc")]
    for _ in range(2):  # an earlier result is replaced
        result = vitreous.evaluate(names[0], "builtin:digits", workers=0, soup=tuple(names[1:]), out=str(tmp_path / "out"))
    (numbers,) = result.records()
    assert numbers["soup"] == names
    assert "average of 3 checkpoints" in result.text()
    assert "average of 3 checkpoints" in (tmp_path / "out" / "report.html").read_text()
    parts = [load_file(Path(name) / "model.safetensors") for name in names]
    soup = load_file(tmp_path / "out" / "checkpoint" / "model.safetensors")
    for name, tensor in soup.items():
        assert torch.allclose(tensor, sum(part[name].double() for part in parts).float() / 3, atol=1e-6)
    (again,) = vitreous.evaluate(str(tmp_path / "out" / "checkpoint"), "builtin:digits", workers=0).records()
    assert again["top1"] == numbers["top1"]
    assert "soup" not in again
    parents = vitreous.load(tmp_path / "out" / "checkpoint").checkpoint.parent["parent"]["soup"]
    assert [parent["source"] for parent in parents] == names


def test_models_of_different_kinds_make_no_soup(tmp_path: Path) -> None:
    first = save(tmp_path / "a")
    others = {
        "architectures": save(tmp_path / "wide", width=48),
        "classes": save(tmp_path / "turned", names=DIGITS[::-1]),
    }
    same = vitreous.load(first).checkpoint
    Classifier(dataclasses.replace(same, preprocess="resize(8)|range(0,1)")).save(tmp_path / "scaled")
    others["preprocessing"] = str(tmp_path / "scaled")
    for what, other in others.items():
        with pytest.raises(VitreousError, match=f"--soup {other}: its {what} are not those of"):
            vitreous.evaluate(first, "builtin:digits", workers=0, soup=(other,))
    with pytest.raises(VitreousError, match="--robustness is measured without --tta flip"):
        vitreous.evaluate(first, "builtin:digits", workers=0, tta="flip", robustness=True)
