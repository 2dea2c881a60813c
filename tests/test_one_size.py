"""A checkpoint has one evaluation preprocessing, hence one size, whichever command is typed.

`python -m pytest tests/test_one_size.py -k table -s` prints the table of sizes and strings.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import transformers
from PIL import Image

import vitreous
from vitreous.classifier import Classifier, load
from vitreous.core.distributed import init_distributed
from vitreous.core.progress import silence
from vitreous.evaluation.fewshot_tasks import choose_preprocess
from vitreous.inspection.images import fixed_size
from vitreous.serving.served_model import load_models
from vitreous.studies.suite_cells import evaluation_preprocess
from vitreous.studies.suite_options import SuiteOptions, choose_suite
from vitreous.training.build_options import build_options
from vitreous.training.resolve import resolve

from conftest import random_checkpoint

TINY: dict[str, Any] = dict(width=32, depth=1, heads=2, mlp=32, classes=2)


def _official(folder: Path, name: str = "ViT-Ti/16") -> Path:
    Classifier(random_checkpoint(name, image_size=64, **TINY)).save(folder / "x.npz")
    (folder / "x.json").unlink()  # as released: arrays and nothing else
    return folder / "x.npz"


def _dinov2(folder: Path) -> Path:
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, mlp_ratio=1, image_size=518, patch_size=14, num_labels=2
    )
    with contextlib.redirect_stderr(io.StringIO()):
        transformers.Dinov2ForImageClassification(config).save_pretrained(folder / "dinov2")
    return folder / "dinov2"


def _timm(folder: Path) -> Path:
    arguments = dict(depth=1, img_size=(32, 112), embed_dim=32, num_heads=2, num_classes=2)
    model = timm.create_model("vit_tiny_patch16_224", **arguments)
    (folder / "timm").mkdir()
    safetensors.torch.save_file(model.state_dict(), folder / "timm" / "model.safetensors")
    settings = dict(architecture="vit_tiny_patch16_224", model_args=arguments)
    settings["pretrained_cfg"] = dict(mean=[0.5] * 3, std=[0.5] * 3, crop_pct=0.9, input_size=[3, 32, 112])
    (folder / "timm" / "config.json").write_text(json.dumps(settings))
    return folder / "timm"


def _ours(folder: Path) -> Path:
    text = "resize_small(73,bilinear,floor)|central_crop(64)|normalise(imagenet)"
    Classifier(random_checkpoint("ViT-Ti/16", image_size=64, preprocess=text, **TINY)).save(folder / "ours")
    return folder / "ours"


KINDS: dict[str, tuple[Callable[[Path], Path], tuple[int, int], str]] = {
    "official .npz": (_official, (64, 64), "resize(64,bilinear-plain)|range(-1,1)"),
    "DINOv2 folder without preprocessor config": (
        _dinov2,
        (224, 224),
        "resize_small(256,bicubic,floor)|central_crop(224)|normalise(imagenet)",
    ),
    "timm, rectangular": (_timm, (32, 112), "resize_small(35,124,bilinear)|central_crop(32,112,round)|range(-1,1)"),
    "hybrid": (lambda folder: _official(folder, "R+ViT-Ti/16"), (64, 64), "resize(64,bilinear-plain)|range(-1,1)"),
    "trained here": (_ours, (64, 64), "resize_small(73,bilinear,floor)|central_crop(64)|normalise(imagenet)"),
}


@dataclass(frozen=True)
class Place:
    checkpoint: str
    data: Path
    folder: Path


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Place]:
    folder = tmp_path_factory.mktemp("one_size")
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    for number in range(8):
        path = folder / "data" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (70, 90 + number, 3), dtype=np.uint8)).save(path)
    return request.param, Place(str(KINDS[request.param][0](folder)), folder / "data", folder)


def _finetune(place: Place, **options: Any) -> Any:
    given = dict(data=str(place.data), from_=place.checkpoint, out=str(place.folder / "run"), device="cpu", steps=1)
    with init_distributed("cpu") as world:
        return resolve(*build_options("finetune", {**given, **options}), world)


def strings(place: Place) -> dict[str, str]:
    """What each command prepares images by; what takes long (figures, training) is asked for its string alone."""
    image = str(next(place.data.rglob("*.png")))
    with silence():
        clf = load(place.checkpoint)
        found = {"load": str(clf.preprocess)}
        found["predict"] = next(iter(vitreous.predict(place.checkpoint, [image], workers=0).records()))["preprocess"]
        evaluated = vitreous.evaluate(place.checkpoint, str(place.data), workers=0, device="cpu")
        found["evaluate"] = next(iter(evaluated.records()))["preprocess"]
        found["fewshot"] = str(choose_preprocess(clf, None))
        found["inspect"] = str(fixed_size(clf)[0])
        found["serve"] = str(load_models([place.checkpoint], device="cpu")[0].clf.preprocess)
        found["verify"] = vitreous.verify(place.checkpoint, place.checkpoint).records()[0]["preprocess"]
        options = SuiteOptions(
            checkpoint=place.checkpoint, data=str(place.data.parent), tasks="caltech101", out="x", mode="linear"
        )
        size = choose_suite(options).protocol.image_size
        found["vtab --mode linear"] = evaluation_preprocess(options.mode, size, clf.checkpoint)
        plan = _finetune(place)
        found["finetune"] = plan.recipe.evaluation  # by which it validates, and the closed-form baseline too
        assert plan.begun.evaluation_size == plan.model.image_size == clf.evaluation_size
    return found


def test_table_every_command_uses_the_checkpoints_own_string(place: tuple[str, Place]) -> None:
    kind, where = place
    _, size, expected = KINDS[kind]
    found = strings(where)
    print(f"\n| {kind} | {size[0]} x {size[1]} | `{expected}` | {', '.join(found)} |")
    assert found == dict.fromkeys(found, expected)
    assert load(where.checkpoint).evaluation_size == size


def test_the_papers_protocol_in_proportion(place: tuple[str, Place]) -> None:
    clf = load(place[1].checkpoint)
    height, width = clf.evaluation_size
    first, crop, *_ = choose_preprocess(clf, "paper").ops
    assert (first.height, first.width) == (round(height / 0.875), round(width / 0.875))
    assert (crop.height, crop.width) == (height, width)


def test_fine_tuning_says_what_a_larger_size_costs(place: tuple[str, Place]) -> None:
    kind, where = place
    said = " ".join(_finetune(where).decisions)
    height, width = KINDS[kind][1]
    assert f"image size {height} x {width}: the checkpoint's own; --image-size" in said
    larger = _finetune(where, image_size=(2 * height, 2 * width))
    assert f"times as much per image as the checkpoint's own, {height} x {width}" in " ".join(larger.decisions)
    assert larger.recipe.evaluation == str(load(where.checkpoint).preprocess.at(2 * height, 2 * width))
    assert larger.model.image_size == (2 * height, 2 * width)


def test_a_named_recipe_has_its_own_string(place: tuple[str, Place]) -> None:
    plan = _finetune(place[1], recipe="finetune-pets", image_size=(224, 224))
    scales = "|".join(map(str, load(place[1].checkpoint).preprocess.scales))
    assert plan.recipe.evaluation == f"resize(224,bilinear-plain)|{scales}"
