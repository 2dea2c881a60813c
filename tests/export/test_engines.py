"""Every model family runs in onnxruntime and OpenVINO, at any batch size, with the numbers of torch."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, build

from vitreous.export.check import TOLERANCE
from vitreous.inference.engines.engine import Engine
from vitreous.inference.engines.onnx_engine import OnnxEngine
from vitreous.inference.engines.openvino_engine import OpenvinoEngine
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
