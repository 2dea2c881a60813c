"""An export answers as `vitreous predict` does in the pipelines of others: photograph in, classes and probabilities out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sklearn.datasets
import timm
import torch
import transformers
from PIL import Image

from vitreous.cli import main
from vitreous.weights.checkpoint import write_checkpoint

from conftest import random_checkpoint

PHOTOGRAPHS = sorted(str(path) for path in (Path(sklearn.datasets.__file__).parent / "images").glob("*.jpg"))
NAMES = ("ant", "bee", "cat", "dog", "eel")
Predict = Callable[[Path], list[dict[str, float]]]
SQUASHED = "resize(64)|range(-1,1)"


@pytest.fixture
def predicted(capsys: pytest.CaptureFixture[str]) -> Predict:
    """`vitreous predict --json`: probabilities by class of each photograph."""

    def predict(checkpoint: Path) -> list[dict[str, float]]:
        capsys.readouterr()
        assert main(["predict", str(checkpoint), *PHOTOGRAPHS, "--json", "--workers", "0"]) == 0
        rows = map(json.loads, capsys.readouterr().out.splitlines())
        return [dict(zip(row["classes"], row["probabilities"], strict=True)) for row in rows]

    return predict


def exported(folder: Path, preprocess: str, format: str) -> tuple[Path, Path]:
    options = dict(depth=2, image_size=64, classes=len(NAMES), names=NAMES, preprocess=preprocess)
    write_checkpoint(random_checkpoint("ViT-Ti/16", **options), folder / "run")
    assert main(["convert", str(folder / "run"), str(folder / "out"), "--format", format]) == 0
    return folder / "run", folder / "out"


@pytest.mark.parametrize("preprocess", [SQUASHED, "resize_small(73,bicubic,floor)|central_crop(64)|normalise(imagenet)"])
def test_the_pipeline_of_transformers(preprocess: str, tmp_path: Path, predicted: Predict) -> None:
    run, out = exported(tmp_path, preprocess, "huggingface")
    pipeline = transformers.pipeline("image-classification", model=str(out))
    for photograph, ours in zip(PHOTOGRAPHS, predicted(run), strict=True):
        theirs = {row["label"]: row["score"] for row in pipeline(photograph)}
        assert list(theirs) == list(ours)  # best first
        # Where torchvision is installed, its resizing rounds a few pixels to the next of 256 levels.
        assert theirs == pytest.approx(ours, abs=1e-3)


@pytest.mark.parametrize("preprocess", [SQUASHED, "resize_small(73,bicubic,floor)|central_crop(64,round)|normalise(imagenet)"])
def test_timms_transform_and_model(preprocess: str, tmp_path: Path, predicted: Predict) -> None:
    run, out = exported(tmp_path, preprocess, "timm")
    model = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    for photograph, ours in zip(PHOTOGRAPHS, predicted(run), strict=True):
        with torch.inference_mode():
            probabilities = model(transform(Image.open(photograph).convert("RGB"))[None]).softmax(-1)[0]
        theirs = dict(zip(model.pretrained_cfg["label_names"], probabilities.tolist(), strict=True))
        assert theirs == pytest.approx(ours, abs=1e-5)
