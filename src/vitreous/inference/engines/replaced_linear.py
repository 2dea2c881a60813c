"""`F.linear` computed by another function for a while, in this thread: also where it is called outside of an `nn.Linear`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class ReplacedLinear(TorchFunctionMode):
    """`with ReplacedLinear(other):` calls `other(input, weight, bias)`; inside `other`, `F.linear` is torch's own."""

    def __init__(self, linear: Callable[..., Tensor]) -> None:
        super().__init__()
        self.linear = linear

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return (self.linear if function is F.linear else function)(*args, **(kwargs or {}))
