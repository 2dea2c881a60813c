"""The matrix-multiply peak of this machine: what any model's throughput is a share of."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

SIDE = 2048
MATMUL_FLOPS = 2 * SIDE**3


def matmul_step() -> Callable[[], Any]:
    """By the faster of torch's two libraries: MKL, which its products use, has no AVX-512 on AMD's processors; oneDNN has."""
    import torch

    torch.set_grad_enabled(False)
    square, out = torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)
    ways: list[Callable[[], Any]] = [lambda: torch.mm(square, square, out=out)]
    with contextlib.suppress(AttributeError, RuntimeError):  # not in every build of torch
        onednn: Any = torch.ops.mkldnn
        packed = onednn._reorder_linear_weight(square, SIDE)
        ways.append(lambda: onednn._linear_pointwise(square, packed, None, "none", [], ""))
    return min(ways, key=_seconds)


def _seconds(step: Callable[[], Any]) -> float:
    step()
    began = time.process_time()
    step()
    return time.process_time() - began
