from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vitreous.classifier import Classifier, load
from vitreous.core.errors import VitreousError
from vitreous.inference.engines import onnx_engine
from vitreous.inspection.file_names import number_repeated
from vitreous.serving.served_model import ServedModel, leading_tokens, load_models, name_of, slug

from conftest import random_checkpoint

TINY = dict(image_size=32, patch=8, width=32, depth=2, heads=2, mlp=48, classes=5)


def saved(folder: Path, **options: object) -> Classifier:
    clf = Classifier(random_checkpoint("ViT-Ti/16", **{**TINY, **options}))
    clf.save(folder)
    return clf


def test_models_are_loaded_under_names_that_differ(tmp_path: Path) -> None:
    for run in ("a/pets", "b/pets"):
        saved(tmp_path / run / "checkpoint")
    saved(tmp_path / "b/pets/checkpoint/best")
    places = ["a/pets/checkpoint", "b/pets", "b/pets/checkpoint/best"]
    found = load_models([str(tmp_path / place) for place in places], device="cpu")
    assert [one.name for one in found] == ["pets", "pets-2", "pets-best"]
    assert all(one.device == "cpu" and not one.clf.model.training for one in found)


def test_an_engine_has_made_its_graph_before_the_first_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "run")
    (found,) = load_models([str(tmp_path / "run")], device="cpu", engine="onnx")
    monkeypatch.setattr(onnx_engine, "export_bare_graph", lambda *_: pytest.fail("exported again"))
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(found.clf.features(images), load(tmp_path / "run").features(images), atol=1e-4)


def test_a_name_has_nothing_that_an_address_would_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ViT-B_16.npz").touch()
    assert name_of("ViT-B_16.npz") == "ViT-B_16"
    assert name_of("ViT-B/16@imagenet21k") == "ViT-B-16@imagenet21k"
    assert name_of("hf:google/vit") == "hf-google-vit"
    assert slug("müsli & <b>?#/..") == "müsli-b"
    assert slug("???") == "model"
    assert len(slug("x" * 500)) == 80
    assert number_repeated(["a", "a", "a-2", "a"]) == ["a", "a-2", "a-2-2", "a-3"]


def test_another_image_size_is_reported(tmp_path: Path) -> None:
    saved(tmp_path / "run")
    (found,) = load_models([str(tmp_path / "run")], image_size=(32, 48), device="cpu")
    card = found.card()
    assert (card["image_size"], card["grid"], card["step"]) == ([32, 48], [4, 6], [8, 8])


def test_the_card_tells_what_the_model_is() -> None:
    clf = Classifier(random_checkpoint("ViT-Ti/16", registers=2, **TINY))
    card = ServedModel("tiny", clf).card()
    assert json.loads(json.dumps(card)) == card
    assert card["parameters"] == sum(tensor.numel() for tensor in clf.checkpoint.tensors.values())
    expected = dict(classes=5, layers=2, heads=2, prefix_tokens=3, has_attention=True, has_head=True, pool="token")
    assert {key: card[key] for key in expected} == expected
    assert card["leading"] == ["class token", "register 1", "register 2"]


def test_the_card_of_models_without_head_and_without_attention() -> None:
    bare = ServedModel("bare", Classifier(random_checkpoint("ViT-Ti/16", **{**TINY, "classes": 0}))).card()
    assert (bare["has_head"], bare["classes"]) == (False, 0)
    resnet = ServedModel(
        "resnet", Classifier(random_checkpoint("R26x1", width=32, units=(1, 1), image_size=32, classes=3))
    ).card()
    assert (resnet["has_attention"], resnet["grid"], resnet["step"], resnet["pool"]) == (False, None, None, None)
    assert (resnet["layers"], resnet["heads"], resnet["prefix_tokens"], resnet["leading"]) == (0, 0, 0, [])


def test_axial_layers_are_counted_twice() -> None:
    options = {**TINY, "class_token": False, "pool": "gap", "attention": "axial", "position_prefix": 0}
    assert ServedModel("axial", Classifier(random_checkpoint("ViT-Ti/16", **options))).card()["layers"] == 4


def test_leading_tokens_come_in_the_order_of_the_sequence() -> None:
    config = random_checkpoint("ViT-Ti/16", distillation_token=True, registers=1, **TINY).config
    assert leading_tokens(config) == ["class token", "distillation token", "register 1"]


def test_positions_are_the_cosines_of_the_table() -> None:
    loaded = ServedModel("tiny", Classifier(random_checkpoint("ViT-Ti/16", **{**TINY, "image_size": (32, 24)})))
    answer = loaded.positions
    coded = answer["similarity"]
    assert (answer["grid"], coded["dtype"], coded["shape"]) == ([4, 3], "int8", [12, 12])
    found = np.frombuffer(base64.b64decode(coded["data"]), np.int8).reshape(12, 12) * coded["scale"]
    table = loaded.clf.checkpoint.tensors["positions.0.table"].numpy()[1:].astype(np.float64)
    expected = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in table] for a in table]
    assert np.abs(found - expected).max() <= 0.5 / 127 + 1e-6
    assert loaded.positions is answer  # worked out once


def test_a_model_without_positions_says_so() -> None:
    options = {**TINY, "positions": "none", "position_prefix": 0}
    with pytest.raises(VitreousError, match="positions"):
        _ = ServedModel("none", Classifier(random_checkpoint("ViT-Ti/16", **options))).positions


def test_images_of_any_size_cannot_be_served(tmp_path: Path) -> None:
    clf = Classifier(random_checkpoint("ViT-Ti/16", preprocess="resize_small(32)|range(-1,1)", **TINY))
    clf.save(tmp_path / "run")
    with pytest.raises(VitreousError, match="different sizes"):
        load_models([str(tmp_path / "run")], device="cpu")
