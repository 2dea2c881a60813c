"""Images and checkpoints to embed, and the command that does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.cli import main
from vitreous.inference import embed_run
from vitreous.weights.checkpoint import write_checkpoint

from conftest import random_checkpoint


def write_images(folder: Path, count: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for number in range(count):
        place = folder / ("cat", "dog")[number % 2] / f"{number:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(place)


def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """photos/ with two splits, and the checkpoints tiny and other."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "photos" / "train", 10)
    write_images(tmp_path / "photos" / "test", 5, seed=1)
    for name, bias in (("tiny", 0.0), ("other", 0.1)):
        checkpoint = random_checkpoint("ViT-Ti/4", width=12, depth=2, heads=3, mlp=24, image_size=8, classes=2)
        next(iter(checkpoint.tensors.values())).add_(bias)
        write_checkpoint(checkpoint, tmp_path / name)
    monkeypatch.setattr(embed_run, "BATCHES", 2)
    return tmp_path


def embed(*words: str, checkpoint: str = "tiny", out: str = "f.safetensors") -> int:
    return main(["embed", checkpoint, "photos", "--out", out, "--workers", "0", "--batch-size", "2", "--device", "cpu", *words])
