"""`--engine auto` measures once, remembers, says so, and keeps to torch where nothing is faster."""

from __future__ import annotations

import pytest
import torch
from families import build

from vitreous.classifier import Classifier
from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.inference.engines import choose
from vitreous.inference.engines.choose import choose_engine
from vitreous.weights.checkpoint import Checkpoint

ALONE = World(0, 1, torch.device("cpu"))


def classifier() -> Classifier:
    model = build("class token")
    return Classifier(Checkpoint(model.config, model.state_dict(), "resize(32,40)|range(-1,1)"))


def test_it_measures_once_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def speeds(clf: object, names: list[str], *_: object) -> dict[str, float]:
        measured.append(names)
        return {"torch": 10.0, "onnx": 14.0, "openvino": 9.0}

    monkeypatch.setattr(choose, "measure_engines", speeds)
    first, second = classifier(), classifier()
    (note,) = choose_engine(first, "auto", world=ALONE, precision="float32", batch_size=4)
    assert note == "engine auto: onnx; images/s at batch size 4, measured now: onnx 14, torch 10, openvino 9"
    (note,) = choose_engine(second, "auto", world=ALONE, precision="float32", batch_size=4)
    assert "as measured before" in note
    assert first.engine.name == second.engine.name == "onnx"
    assert measured == [["torch", "onnx", "openvino"]]
    choose_engine(second, "auto", world=ALONE, precision="float32", batch_size=5)
    assert len(measured) == 2  # another batch size is another question


def test_torch_stays_where_little_is_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "measure_engines", lambda *_: {"torch": 10.0, "onnx": 10.3})
    clf = classifier()
    choose_engine(clf, "auto", world=ALONE, precision="float32", batch_size=6)
    assert clf.engine.name == "torch"


def test_the_precision_is_never_changed() -> None:
    clf = classifier()
    (note,) = choose_engine(clf, "auto", world=ALONE, precision="bfloat16", batch_size=4)
    assert clf.engine.name == "torch"
    assert note.startswith("engine auto: torch, because")
    with pytest.raises(VitreousError, match="--engine onnx: computes in float32; give --precision float32"):
        choose_engine(clf, "onnx", world=ALONE, precision="bfloat16", batch_size=4)


def test_real_speeds_are_numbers() -> None:
    speeds = choose.measure_engines(classifier(), ["torch", "onnx"], torch.device("cpu"), 2)
    assert set(speeds) == {"torch", "onnx"}
    assert min(speeds.values()) > 0
