"""Every model family runs in onnxruntime and OpenVINO, at any batch size, with the numbers of torch."""

from __future__ import annotations

import gc

import onnx
import pytest
import torch
from families import FAMILIES, build
from torch.nn import functional as F

from vitreous.export.check import TOLERANCE
from vitreous.inference.engines.engine import Engine
from vitreous.inference.engines.graph import _flat_linear, export_bare_graph
from vitreous.inference.engines.onnx_engine import OnnxEngine, run_session
from vitreous.inference.engines.openvino_engine import OpenvinoEngine, run_compiled
from vitreous.inference.runner import Runner


def assert_same_numbers(model: torch.nn.Module, engine: Engine, kind: str = "head") -> None:
    images = torch.randn(6, 3, *model.config.image_size)
    with Runner(model, kind=kind) as runner:  # type: ignore[arg-type]
        ours = runner.run(images)
    with Runner(model, kind=kind, engine=engine) as runner:  # type: ignore[arg-type]
        for part in (images, images[:1]):
            theirs = runner.run(part)
            for a, b in zip(ours, theirs, strict=True):
                assert b.shape == (len(part), *a.shape[1:])
                assert (a[: len(part)] - b).abs().max() <= TOLERANCE * a.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_in_onnxruntime(family: str) -> None:
    assert_same_numbers(build(family), OnnxEngine())


@pytest.mark.parametrize("family", ["class token", "map", "rotary", "relative", "axial", "bit"])
def test_families_in_openvino(family: str) -> None:
    assert_same_numbers(build(family), OpenvinoEngine())


@pytest.mark.parametrize("kind", ["token", "mean", "patches"])
def test_other_features_than_the_heads(kind: str) -> None:
    assert_same_numbers(build("class token"), OnnxEngine(), kind)


def test_engines_share_the_models_memory() -> None:
    """The graph has no copy of a weight, and the arrays are the model's own."""
    model = build("class token")
    bare = export_bare_graph(model, model.config.image_size)
    tensors = dict(model.state_dict())
    assert set(bare.weights) == {f"model.{name}" for name in tensors}
    assert all(bare.weights[f"model.{name}"].ctypes.data == tensor.data_ptr() for name, tensor in tensors.items())
    graph = onnx.load_model_from_string(bare.content).graph
    assert not graph.initializer
    largest = max(len(node.attribute[0].t.raw_data) for node in graph.node if node.op_type == "Constant")
    assert largest < min(4 * tensor.numel() for tensor in tensors.values() if tensor.ndim > 1)


@pytest.mark.parametrize("engine", [OnnxEngine, OpenvinoEngine])
def test_an_engine_outlives_its_model(engine: type[OnnxEngine] | type[OpenvinoEngine]) -> None:
    """It keeps the memory that it reads."""
    model, own = build("class token"), engine()
    images = torch.randn(2, 3, *model.config.image_size)
    first = own.run(model, images, "head", "float32").logits
    (cached,) = (own._sessions if isinstance(own, OnnxEngine) else own._compiled).values()
    del model
    gc.collect()
    _ = [torch.full((4096,), float("nan")) for _ in range(256)]  # what was free is written over
    run = run_session if isinstance(own, OnnxEngine) else run_compiled
    torch.testing.assert_close(run(cached[0], images, "model").logits, first, rtol=0, atol=0)


def test_linear_layers_keep_their_shape_while_traced() -> None:
    x, weight, bias = torch.randn(2, 3, 4, 6), torch.randn(5, 6), torch.randn(5)
    torch.testing.assert_close(_flat_linear(x, weight, bias), F.linear(x, weight, bias))
