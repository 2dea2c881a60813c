"""`vitreous convert` to .onnx and .xml: what is in the file, and that a file that differs is not kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from families import FAMILIES, build
from torch.nn import functional as F

from vitreous.classifier import Classifier, load
from vitreous.commands.convert import convert
from vitreous.commands.evaluate import evaluate
from vitreous.commands.predict import predict
from vitreous.core.errors import VitreousError
from vitreous.export import export_run
from vitreous.export.dynamic_size import any_size, interpolation_weights
from vitreous.inference.engines.graph import export_graph
from vitreous.models.positions import _INTERPOLATION
from vitreous.weights.checkpoint import Checkpoint

CLASSES = ("a", "b", "c", "d", "e")


def save(folder: Path, family: str = "class token", **more: object) -> str:
    model = build(family)
    size = ",".join(map(str, model.config.image_size))
    names = CLASSES if model.config.classes else None
    checkpoint = Checkpoint(model.config, model.state_dict(), f"resize({size})|range(-1,1)", names, **more)  # type: ignore[arg-type]
    Classifier(checkpoint).save(folder / "model")
    return str(folder / "model")


def test_an_onnx_file_as_onnxruntime_sees_it(tmp_path: Path) -> None:
    source = save(tmp_path, outputs="sigmoid", metrics={"top1": 0.75})
    found = convert(source, str(tmp_path / "m.onnx"))
    assert found.exit_code == 0
    assert found.check is not None
    assert found.check.agrees
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (image,), outputs = session.get_inputs(), session.get_outputs()
    assert (image.name, image.type, image.shape) == ("images", "tensor(float)", ["batch", 3, 32, 40])
    assert [out.name for out in outputs] == ["logits", "features"]
    about = session.get_modelmeta().custom_metadata_map
    assert about["preprocess"] == "resize(32,40)|range(-1,1)"
    assert about["outputs"] == "sigmoid"
    assert json.loads(about["classes"]) == list(CLASSES)
    assert json.loads(about["evaluation_size"]) == [32, 40]
    assert json.loads(about["metrics"]) == {"top1": 0.75}
    images = torch.randn(3, 3, 32, 40)
    logits, features = session.run(None, {"images": images.numpy()})
    model = load(source).model
    with torch.no_grad():
        np.testing.assert_allclose(logits, model(images), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(features, model.features(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["m.onnx", "m.xml"])
def test_an_exported_file_is_a_classifier(tmp_path: Path, name: str) -> None:
    source, image = save(tmp_path), np.random.default_rng(0).integers(0, 255, (50, 60, 3), np.uint8)
    convert(source, str(tmp_path / name))
    ours, theirs = load(source), load(tmp_path / name)
    assert theirs.classes == CLASSES
    a, b = ours.predict([image])[0], theirs.predict([image])[0]
    assert a.classes == b.classes
    np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=1e-4)
    torch.testing.assert_close(ours.features([image]), theirs.features([image]), rtol=1e-4, atol=1e-5)
    with pytest.raises(VitreousError, match="an exported file only runs"):
        theirs.save(tmp_path / "again")
    with pytest.raises(VitreousError, match="32 x 40 pixels only"):
        load(tmp_path / name, image_size=64)
    with pytest.raises(VitreousError, match="an exported file only runs"):
        convert(str(tmp_path / name), str(tmp_path / "back"))


def test_commands_run_an_exported_file(tmp_path: Path) -> None:
    source = save(tmp_path)
    convert(source, str(tmp_path / "m.onnx"))
    for folder in CLASSES:
        (tmp_path / "data" / folder).mkdir(parents=True)
        for number in range(2):
            pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), np.uint8)
            from PIL import Image

            Image.fromarray(pixels).save(tmp_path / "data" / folder / f"{number}.png")
    data = str(tmp_path / "data")
    ours, theirs = (evaluate(which, data, workers=0) for which in (source, str(tmp_path / "m.onnx")))
    assert ours.numbers["top1"] == theirs.numbers["top1"]
    assert theirs.numbers["engine"] == "onnx"
    rows = [tuple(predict(source, [data], workers=0, engine=engine).rows) for engine in ("torch", "onnx", "openvino")]  # type: ignore[arg-type]
    for a, b, c in zip(*rows, strict=True):
        assert a.classes == b.classes == c.classes
        np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=1e-4)
        np.testing.assert_allclose(a.probabilities, c.probabilities, rtol=1e-4)


def test_a_file_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of other weights stands for an exporter's mistake."""
    source = save(tmp_path)
    other = build("class token")
    with torch.no_grad():
        other.head.bias += 0.01
    monkeypatch.setattr(export_run, "make_graph", lambda *_: export_graph(other, (32, 40)))
    found = convert(source, str(tmp_path / "m.onnx"))
    assert found.exit_code == 1
    assert "BEYOND" in found.text()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("mode", [*_INTERPOLATION])
@pytest.mark.parametrize(("old", "new"), [(7, 7), (7, 12), (12, 7), (5, 1), (4, 16)])
def test_interpolation_as_a_matrix(mode: str, old: int, new: int) -> None:
    table = torch.randn(old, 3)
    grid = table.T[None, :, :, None].expand(-1, -1, -1, 1)
    square = F.interpolate(table.T[None, :, :, None].repeat(1, 1, 1, 4), (new, 4), **_INTERPOLATION[mode])  # type: ignore[index]
    assert grid.shape[2] == old
    torch.testing.assert_close(interpolation_weights(new, old, mode) @ table, square[0, :, :, 0].T, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["class token", "registers, layer scale", "rotary", "factorised", "sines", "axial", "bit"])
def test_a_file_for_any_size(family: str) -> None:
    model = build(family)
    with any_size(model):
        graph = export_graph(model, model.config.image_size, dynamic_size=True)
    session = onnxruntime.InferenceSession(graph)
    for size in ((32, 40), (64, 32), (72, 88)):
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            expected = model(images)
        np.testing.assert_allclose(session.run(None, {"images": images.numpy()})[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["relative", "hybrid", "axial resnet"])
def test_one_size_only_is_said(family: str) -> None:
    with pytest.raises(VitreousError, match="leave out --dynamic-size"), any_size(build(family)):
        pass


def test_bad_files(tmp_path: Path) -> None:
    source = save(tmp_path)
    convert(source, str(tmp_path / "m.onnx"))
    content = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(content[: len(content) // 2])
    (tmp_path / "foreign.onnx").write_bytes(export_graph(build("class token"), (32, 40)))
    (tmp_path / "alone.xml").write_text("<net/>")
    for name, why in {
        "cut.onnx": "cannot be read by onnxruntime",
        "foreign.onnx": "is not a file that `vitreous convert` has written",
        "alone.xml": "its weights, alone.bin, are not beside it",
        "none.onnx": "no such file",
    }.items():
        with pytest.raises(VitreousError, match=why):
            load(tmp_path / name)
    with pytest.raises(VitreousError, match="--format onnx writes a file that ends in"):
        convert(source, str(tmp_path / "m.bin"), format="onnx")
    with pytest.raises(VitreousError, match="--check, --dynamic-size and --int8 are for"):
        convert(source, str(tmp_path / "again"), dynamic_size=True)


def test_an_engine_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.inference.engines import engine

    source = save(tmp_path)
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(VitreousError, match=r"pip install 'vitreous\[export\]'"):
        convert(source, str(tmp_path / "m.onnx"))
    with pytest.raises(VitreousError, match=r"needs onnx, openvino, .* pip install 'vitreous\[export\]'"):
        predict(source, ["x.png"], engine="openvino")


def test_families_without_a_head(tmp_path: Path) -> None:
    found = convert(save(tmp_path, "no head"), str(tmp_path / "m.onnx"))
    assert found.exit_code == 0
    assert load(tmp_path / "m.onnx").features(torch.zeros(1, 3, 32, 40)).shape == (1, FAMILIES["no head"]["width"])
