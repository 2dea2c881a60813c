"""Linear layers by oneDNN, where torch's own matrix library leaves half of the processor unused.

torch multiplies float32 matrices with Intel's MKL, which has no AVX-512 kernels for processors of AMD. torch also ships
oneDNN, which has: whole ViTs run 1.6 to 2 times as fast (docs/decisions.md). Both sum in float32, in another order.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.core.processor import is_amd_with_avx512
from vitreous.inference.engines.replaced_linear import ReplacedLinear

# Multiply-adds from which oneDNN is faster: its call takes 10 us more than MKL's.
_WORTH = 2**20


def onednn_linear(precision: str) -> contextlib.AbstractContextManager[object]:
    """Inside, `F.linear` of this thread is computed by oneDNN, where that is faster and needs no gradient.

    That depends on the processor and the shapes alone, never on timing: the same command gives the same bytes again.
    """
    backends = torch.backends
    faster = is_amd_with_avx512() and backends.mkl.is_available() and backends.mkldnn.is_available()
    suits = backends.mkldnn.enabled and precision == "float32" and not torch.is_grad_enabled()
    return ReplacedLinear(_linear) if faster and suits else contextlib.nullcontext()


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    plain = input.device.type == "cpu" and input.dtype == weight.dtype == torch.float32
    if plain and input.numel() * len(weight) >= _WORTH:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
        return product
    return F.linear(input, weight, bias)
