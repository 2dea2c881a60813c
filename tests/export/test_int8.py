"""`--int8`: weights in eight bits, what it costs on held-out images, and no file where it costs too much."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from vitreous.classifier import Classifier, load
from vitreous.commands.convert import convert
from vitreous.core.errors import VitreousError
from vitreous.export import int8
from vitreous.models.build import create
from vitreous.weights.checkpoint import Checkpoint

CLASSES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data")
    pixels = np.random.default_rng(0).integers(0, 255, (2, 4, 8, 16, 16), np.uint8)
    for split, per_class in zip(("train", "test"), pixels, strict=True):
        for name, images in zip(CLASSES, per_class, strict=True):
            (folder / split / name).mkdir(parents=True)
            for number, image in enumerate(images):
                Image.fromarray(image).save(folder / split / name / f"{number}.png")
    return str(folder)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    model = create("ViT-Ti/4", image_size=16, width=32, depth=2, heads=2, mlp=64, channels=1, classes=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    folder = tmp_path_factory.mktemp("int8") / "model"
    Classifier(Checkpoint(model.config, model.state_dict(), "resize(16)|range(-1,1)", CLASSES)).save(folder)
    return str(folder)


def test_onnx_in_int8(checkpoint: str, data: str, tmp_path: Path) -> None:
    convert(checkpoint, str(tmp_path / "float.onnx"))
    found = convert(checkpoint, str(tmp_path / "m.onnx"), int8=data, tolerance=100)
    assert found.exit_code == 0
    assert found.int8 is not None
    assert "int8: top-1 on" in found.text()
    whole, small = (onnx.load(tmp_path / name) for name in ("float.onnx", "m.onnx"))
    assert sum(node.op_type == "MatMulInteger" for node in small.graph.node) == 9  # four in each layer, and the head
    weights = [each for each in small.graph.initializer if each.data_type == onnx.TensorProto.INT8]
    assert sum(len(each.raw_data) for each in weights) >= 2 * (4 * 32 * 32 + 2 * 32 * 64)
    assert not any(node.op_type == "MatMulInteger" for node in whole.graph.node)
    clf = load(tmp_path / "m.onnx")
    metrics = clf.engine.info.checkpoint.metrics  # type: ignore[attr-defined]
    assert metrics["int8_top1"] == pytest.approx(found.int8.after.top1)
    images = torch.randn(3, 1, 16, 16)
    near = load(checkpoint).features(images)
    assert (clf.features(images) - near).abs().max() < 0.1 * near.abs().max()


def test_openvino_in_int8(checkpoint: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = convert(checkpoint, str(tmp_path / "m.xml"), int8=data, tolerance=100)
    assert found.exit_code == 0
    printed = capsys.readouterr()
    assert printed.out == ""  # NNCF's own bars would stand among the JSON of --json
    assert "calibrating int8: " in printed.err
    assert 'element_type="i8"' in (tmp_path / "m.xml").read_text()
    images = torch.rand(3, 1, 16, 16) * 2 - 1  # as the images of the calibration: what is beyond them is clipped
    near = load(checkpoint).features(images)
    assert (load(tmp_path / "m.xml").features(images) - near).abs().mean() < 0.2 * near.abs().mean()


def test_layers_stay_in_float_until_it_is_small(
    checkpoint: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracies are invented: the first int8 graph loses ten points, the one with a kind of layer in float none."""
    rights = iter([90, 80, 90])
    monkeypatch.setattr(int8, "_measure", lambda clf, held_out: int8.Accuracy(next(rights), 100))
    found = convert(checkpoint, str(tmp_path / "m.onnx"), int8=data)
    assert found.exit_code == 0
    assert found.int8 is not None
    assert len(found.int8.kept) == 1
    names = [node.name for node in onnx.load(tmp_path / "m.onnx").graph.node if node.op_type == "MatMul"]
    assert sum(f"/{found.int8.kept[0]}/" in name for name in names) == 2


def test_no_file_where_it_costs_too_much(checkpoint: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rights = iter([90, *[80] * 10])
    monkeypatch.setattr(int8, "_measure", lambda clf, held_out: int8.Accuracy(next(rights), 100))
    found = convert(checkpoint, str(tmp_path / "m.onnx"), int8=data)
    assert found.exit_code == 1
    assert "NOT within --tolerance 0.5" in found.text()
    assert not list(tmp_path.glob("*m.onnx*"))


def test_too_few_images(checkpoint: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "FEWEST", 1_000_000)
    with pytest.raises(VitreousError, match="too few to calibrate on"):
        convert(checkpoint, str(tmp_path / "m.onnx"), int8=data)
    assert not list(tmp_path.glob("*m.onnx*"))
