"""Muon beside Adam: hidden matrices learn by Muon, everything else by Adam.

Muon makes the singular values of a matrix's momentum all alike before it steps along it [Jordan et al. 2024]: directions
that gradients rarely point in are learnt as fast as the others. It is for matrices between hidden layers, the blocks' and the
kernels of a convolutional stem or trunk; embeddings, heads, norms, biases and tables keep Adam. One learning rate serves both:
a matrix's step is scaled to the size that Adam's steps usually have [Liu et al. 2025, "match_rms_adamw"].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

HIDDEN = ("model.blocks.", "model.trunk.")


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    return name.startswith(HIDDEN) and name.endswith(".weight") and parameter.ndim in (2, 4)


class MuonWithAdam(torch.optim.Optimizer):
    """One optimiser to its users: groups and state of both, each parameter in one of them; a group's `muon` says which."""

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], fused: bool) -> None:
        super().__init__(groups, {"lr": lr})
        adam = [group for group in self.param_groups if not group["muon"]]
        muon = [group for group in self.param_groups if group["muon"]]
        self._adam = torch.optim.AdamW(adam, lr=lr, betas=betas, eps=1e-8, fused=fused) if adam else None
        self._muon = torch.optim.Muon(map(_as_matrices, muon), lr=lr, adjust_lr_fn="match_rms_adamw") if muon else None
        if self._adam is not None:
            self._adam.state = self.state
            self.param_groups = [*self._adam.param_groups, *muon]
        self._kernels = list(zip(muon, self._muon.param_groups if self._muon else (), strict=True))
        for own, views in self._kernels:
            for parameter, matrix in zip(own["params"], views["params"], strict=True):
                self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
                self._muon.state[matrix] = {"momentum_buffer": self.state[parameter]["momentum_buffer"].flatten(1)}  # type: ignore[union-attr]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # nobody gives one
        for own, views in self._kernels:
            views["lr"] = own["lr"]
            for parameter, matrix in zip(own["params"], views["params"], strict=True):
                matrix.grad = None if parameter.grad is None else parameter.grad.flatten(1)
        for part in (self._adam, self._muon):
            if part is not None:
                part.step()


def _as_matrices(group: dict[str, Any]) -> dict[str, Any]:
    """The same memory as matrices, a row for each output: torch's Muon takes nothing else, and kernels have four axes."""
    views: list[Tensor] = [parameter.detach().view(len(parameter), -1) for parameter in group["params"]]
    return {"params": views, "weight_decay": group["weight_decay"], "lr": group["lr"]}
