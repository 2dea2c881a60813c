"""Linear layers by oneDNN: torch's numbers, and only where they are asked for."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.core import processor
from vitreous.inference.engines import onednn_linear as engine
from vitreous.inference.runner import Runner
from vitreous.models.build import create
from vitreous.models.config import ResNetConfig

needs_onednn = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()), reason="this torch has one of them only"
)
VIT = dict(name="ViT-Ti/8", image_size=(32, 40), width=24, depth=2, heads=2, mlp=32)
MODELS = {
    "class token": VIT,
    "attention pooling": VIT | dict(pool="map", class_token=False),
    "keys without bias, rotary": VIT | dict(positions="rope", key_bias=False),
    "relative": VIT | dict(positions="relative"),
    "axial": VIT | dict(attention="axial", pool="gap", class_token=False),
    "gated, representation": VIT | dict(mlp_form="swiglu", representation=12),
    "hybrid": VIT
    | dict(name="R26+ViT-S/32", image_size=64, trunk=ResNetConfig(form="post", width=32, units=(1, 1, 1), classes=0)),
    "resnet": dict(name="R50x1", image_size=32, width=32, units=(1, 1, 1, 1)),
}


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """On a processor where oneDNN is faster, for products of any size; the shapes of weights that it was given."""
    shapes: list[tuple[int, ...]] = []
    pointwise = torch.ops.mkldnn._linear_pointwise

    def counted(input: Tensor, weight: Tensor, *rest: object) -> Tensor:
        shapes.append(tuple(weight.shape))
        result: Tensor = pointwise(input, weight, *rest)
        return result

    monkeypatch.setattr(engine, "is_amd_with_avx512", lambda: True)
    monkeypatch.setattr(engine, "_WORTH", 0)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    return shapes


@needs_onednn
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_double_precision(name: str, products: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    model = create(**{"classes": 5, **MODELS[name]}).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 4:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)  # a new head is zeros
    images = torch.randn(3, 3, *model.config.image_size)
    with Runner(model, lean=True) as runner:
        outputs = runner.run(images)
    with torch.no_grad():
        exact = copy.deepcopy(model).double().logits_and_features(images.double())
    linears = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
    assert len(products) == linears
    for ours, reference in zip(outputs, exact, strict=True):
        assert reference.abs().max() > 0.1
        assert (ours - reference).abs().max() <= 2e-5 * reference.abs().max()


@needs_onednn
def test_gradients_bfloat16_double_and_other_processors_keep_torchs_own(
    products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = torch.randn(4, 6), torch.randn(5, 6, requires_grad=True)
    with engine.onednn_linear("float32"):
        F.linear(x, w).sum().backward()
    assert w.grad is not None
    with torch.no_grad():
        with engine.onednn_linear("bfloat16"):
            F.linear(x, w)
        with engine.onednn_linear("float32"):
            F.linear(x.double(), w.double())
        with torch.backends.mkldnn.flags(enabled=False), engine.onednn_linear("float32"):
            F.linear(x, w)
        monkeypatch.setattr(engine, "is_amd_with_avx512", lambda: False)
        with engine.onednn_linear("float32"):
            F.linear(x, w)
    F.linear(x, w.detach())
    assert products == []


@needs_onednn
def test_small_products_keep_torchs_own(products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_WORTH", 4 * 5 * 6)
    weight, bias = torch.randn(5, 6), torch.randn(5)
    with torch.no_grad(), engine.onednn_linear("float32"):
        small, large = F.linear(torch.ones(3, 6), weight, bias=bias), F.linear(torch.ones(2, 2, 6), weight)
    assert (small.shape, large.shape) == ((3, 5), (2, 2, 5))
    assert products == [(5, 6)]


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", "fpu avx2 avx512f avx512_bf16", True),
        ("AuthenticAMD", "fpu avx2", False),
        ("GenuineIntel", "fpu avx2 avx512f", False),
    ],
)
def test_processors(vendor: str, flags: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n")
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert processor.is_amd_with_avx512.__wrapped__() is expected


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "none")
    assert not processor.is_amd_with_avx512.__wrapped__()
