"""softmax(q k^T / sqrt(K)) v, equations (6) and (7): torch's fused attention, but for one case that it computes slowly.

That case is training in bfloat16 on AMD processors with AVX-512, where `--precision auto` chooses it: the backward pass of
torch's kernel is much slower there than plain matrix products and a softmax (docs/decisions.md). These are
computed here for a few images at a time, so that A stays in the cache, and A is recomputed in the backward pass.

Shapes: B batch, H heads, N queries, M keys, K head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.core.processor import is_amd_with_avx512

_AT_ONCE = 2**19  # elements of A, a megabyte: from 2^17 to 2^20 are as fast, 2^21 is slower


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """(B, H, N, K), (B, H, M, K) twice and perhaps a bias (B or 1, H or 1, N, M) for the logits, to (B, H, N, K)."""
    # Not for fake tensors, on which memory and FLOPs are counted: the parts are many operations and hold next to nothing.
    plain = type(q) is Tensor and bias is None and not dropout and not torch.compiler.is_compiling()
    if torch.is_grad_enabled() and plain and q.dtype == torch.bfloat16 and q.device.type == "cpu" and is_amd_with_avx512():
        result: Tensor = Bfloat16Attention.apply(q, k, v)  # type: ignore[no-untyped-call]
        return result
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)


class Bfloat16Attention(torch.autograd.Function):
    """As in torch's kernel logits and softmax are in float32, and A is rounded to bfloat16."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        out = _empty_like_heads(q)
        with torch.autocast("cpu", enabled=False):
            for part in _parts(q, k):
                out[part] = _probabilities(q[part], k[part]) @ v[part]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        dq, dk, dv = map(_empty_like_heads, (q, k, v))
        with torch.autocast("cpu", enabled=False):
            for part in _parts(q, k):
                a_BHNM = _probabilities(q[part], k[part])
                dv[part] = a_BHNM.mT @ gradient[part]
                da_BHNM = gradient[part] @ v[part].mT
                ds_BHNM = torch.ops.aten._softmax_backward_data(da_BHNM, a_BHNM, -1, a_BHNM.dtype).mul_(scale)
                dq[part] = ds_BHNM @ k[part]
                dk[part] = ds_BHNM.mT @ q[part]
        return dq, dk, dv


def _probabilities(q: Tensor, k: Tensor) -> Tensor:
    """In float32 up to the end: a large logit rounded to bfloat16 would be off by tenths."""
    logits = (q.float() * q.shape[-1] ** -0.5) @ k.float().mT
    return logits.softmax(dim=-1).to(q.dtype)


def _parts(q: Tensor, k: Tensor) -> Iterator[slice]:
    images = max(1, _AT_ONCE // (q.shape[1] * q.shape[2] * k.shape[2]))
    return (slice(at, at + images) for at in range(0, len(q), images))


def _empty_like_heads(x: Tensor) -> Tensor:
    """In memory (B, N, H, K), as q, k and v are: heads are put side by side again without a copy."""
    b, h, n, k = x.shape
    return x.new_empty(b, n, h, k).transpose(1, 2)
