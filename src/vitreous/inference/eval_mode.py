"""A model on a device and in eval mode for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def on_device(model: nn.Module, device: torch.device | str) -> Iterator[None]:
    """The model on this device; afterwards where it was."""
    before = next(model.parameters()).device
    try:
        model.to(device)
        yield
    finally:
        model.to(before)


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The model with dropout off; afterwards each of its modules as it was: a frozen part may be in eval mode already."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
