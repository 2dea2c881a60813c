"""`--merge-tokens` on the command line: every command that runs a model heeds it, and wrong values get one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from vitreous.cli import main
from vitreous.weights.checkpoint import write_checkpoint

from conftest import random_checkpoint


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(6):
        target = Path("photos") / ("cat", "dog")[number % 2] / f"{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(target)
    tiny = random_checkpoint(
        "ViT-B/16", width=24, depth=3, heads=3, mlp=24, patch=4, image_size=32, classes=2, names=("cat", "dog")
    )
    write_checkpoint(tiny, Path("tiny"))
    return tmp_path


def probabilities(capsys: pytest.CaptureFixture[str], *words: str) -> list[float]:
    assert main(["predict", "tiny", "photos", "--top", "2", "--json", "--workers", "0", *words]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [dict(zip(row["classes"], row["probabilities"], strict=True))["cat"] for row in rows]


def test_predict_runs_the_model_that_merges(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    merged, plain = probabilities(capsys, "--merge-tokens", "8"), probabilities(capsys)
    assert plain == probabilities(capsys, "--merge-tokens", "0")
    assert not np.allclose(merged, plain, atol=1e-6)
    clf = vitreous.load("tiny")
    images = clf.prepare(sorted(Path("photos").rglob("*.png")))
    clf.model.merge_tokens = 8  # type: ignore[union-attr]
    tokens = []
    last = clf.model.blocks[-1]  # type: ignore[union-attr]
    last.norm1.register_forward_hook(lambda module, inputs, output: tokens.append(output.shape[1]))
    with torch.no_grad():
        expected = clf.model(images).softmax(-1)[:, 0]
    assert tokens == [1 + 64 - 2 * 8]  # two layers before the last, eight tokens fewer after each
    assert np.allclose(merged, expected.numpy(), atol=1e-5)


def test_evaluate_and_embed_heed_it(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features = []
    for count in ("0", "8"):
        assert main(["embed", "tiny", "photos", "--out", f"{count}.npy", "--merge-tokens", count, "--workers", "0"]) == 0
        features.append(np.load(f"{count}.npy"))
        assert main(["evaluate", "tiny", "photos", "--merge-tokens", count, "--workers", "0", "--json"]) == 0
    assert features[0].shape == features[1].shape
    assert not np.allclose(*features, atol=1e-6)


@pytest.mark.parametrize("command", [["predict", "tiny", "photos"], ["evaluate", "tiny", "photos"]])
def test_a_negative_number_gets_one_line(command: list[str], world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--merge-tokens", "-1"]) == 2
    assert "--merge-tokens -1: must be" in capsys.readouterr().err


def test_a_model_without_tokens_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(random_checkpoint("R50x1", units=(1, 1, 1, 1), width=32, image_size=32, classes=2), Path("resnet"))
    assert main(["predict", "resnet", "photos", "--merge-tokens", "4", "--workers", "0"]) == 2
    assert "has no tokens to merge" in capsys.readouterr().err
