"""Polyak averaging: a second set of weights that follows the first at a distance (table 2 uses 0.9999)."""

from __future__ import annotations

import torch
from torch import nn

from vitreous.training.parallel import local_tensor


class PolyakAverage:
    def __init__(self, module: nn.Module, keep: float) -> None:
        self.keep = keep
        self.tensors = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """After step 0, 1, ...: weighted as if the average had begun with the first step and not with what was before it."""
        keep = self.keep * (1 - self.keep**step) / (1 - self.keep ** (step + 1))
        for name, parameter in module.named_parameters():
            local_tensor(self.tensors[name]).lerp_(local_tensor(parameter.detach()), 1.0 - keep)
