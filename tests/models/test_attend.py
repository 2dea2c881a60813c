"""Attention in bfloat16 on AMD: torch's numbers but for rounding, and only where it is faster."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.models import attend as module
from vitreous.models.attend import Bfloat16Attention, attend
from vitreous.models.names import parse_name
from vitreous.training.memory import memory_per_device


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """On a processor of that kind, whatever this one is; the queries that our own kernel was given."""
    given: list[Tensor] = []

    class Counted(Bfloat16Attention):
        @staticmethod
        def forward(ctx: object, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            given.append(q)
            return Bfloat16Attention.forward(ctx, q, k, v)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "is_amd_with_avx512", lambda: True)
    monkeypatch.setattr(module, "Bfloat16Attention", Counted)
    return given


def heads(batch: int, tokens: int, width: int = 16, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """(B, H, N, K) in memory as the model has it."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, 3, width, generator=generator).transpose(1, 2).to(dtype).requires_grad_()


@pytest.mark.parametrize("largest", [1, 8])  # as many times as large, rounded logits would be off by too much
@pytest.mark.parametrize(("queries", "keys"), [(17, 17), (1, 33), (65, 65)])
def test_outputs_and_gradients_are_those_of_double_precision(
    queries: int, keys: int, largest: int, calls: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 2 * 3 * queries * keys)  # two images at a time, one in the last part
    ours = (heads(5, queries).detach() * largest).requires_grad_(), heads(5, keys, seed=1), heads(5, keys, seed=2)
    exact = tuple(x.detach().double().requires_grad_() for x in ours)
    weights = heads(5, queries, seed=3).detach()
    found, expected = attend(*ours), F.scaled_dot_product_attention(*exact)
    found.backward(weights)
    expected.backward(weights.double())
    assert len(calls) == 1
    pairs = [(found, expected), *((x.grad, y.grad) for x, y in zip(ours, exact, strict=True))]
    for got, reference in pairs:
        assert got is not None
        assert reference is not None
        assert (got - reference).norm() <= 0.01 * reference.norm()  # bfloat16 rounds by up to 0.004


def test_heads_are_joined_without_a_copy(calls: list[Tensor]) -> None:
    joined = attend(heads(2, 9), heads(2, 9, seed=1), heads(2, 9, seed=2)).transpose(1, 2)
    assert joined.is_contiguous()


def test_memory_is_counted_with_torchs_kernel(calls: list[Tensor]) -> None:
    memory_per_device(parse_name("ViT-Ti/16", image_size=32, depth=1), micro_batch=4, precision="bfloat16")
    assert not calls


@pytest.mark.parametrize("case", ["float32", "bias", "dropout", "no gradient", "another processor"])
def test_everything_else_is_torchs_own(case: str, calls: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = torch.float32 if case == "float32" else torch.bfloat16
    q, k, v = (heads(2, 9, seed=seed, dtype=dtype) for seed in range(3))
    bias = torch.randn(1, 3, 9, 9, dtype=dtype) if case == "bias" else None
    dropout = 0.5 if case == "dropout" else 0.0
    if case == "another processor":
        monkeypatch.setattr(module, "is_amd_with_avx512", lambda: False)
    with torch.set_grad_enabled(case != "no gradient"):
        torch.manual_seed(0)
        found = attend(q, k, v, bias, dropout)
        torch.manual_seed(0)
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    assert torch.equal(found, expected)
    assert not calls
