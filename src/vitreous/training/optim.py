"""Which parameters learn, how fast, and with how much decay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from vitreous.core.errors import VitreousError
from vitreous.models.build import Model
from vitreous.models.vit import ViT
from vitreous.training.lora import LowRank, is_factor
from vitreous.training.muon import MuonWithAdam, is_hidden_matrix
from vitreous.training.recipes.recipe import Recipe

HEAD = ("model.head.", "model.distillation_head.")


@dataclass(frozen=True)
class Group:
    """Parameters that are treated alike."""

    names: tuple[str, ...]
    rate: float  # how many times the schedule's learning rate
    decay: float
    muon: bool = False


def groups(objective: nn.Module, recipe: Recipe) -> list[Group]:
    """Every parameter that learns, once, in an order that depends on names alone."""
    model: Model = objective.model  # type: ignore[assignment]
    kernels = set(_kernels(objective))
    found: dict[tuple[float, float, bool], list[str]] = {}
    for name, parameter in objective.named_parameters():
        frozen = recipe.train != "all" and not (name.startswith(HEAD) or is_factor(name))
        if not parameter.requires_grad or frozen:
            continue
        decay = recipe.weight_decay if recipe.decay == "all" or name in kernels else 0.0
        muon = recipe.optimizer == "muon" and is_hidden_matrix(name, parameter)
        found.setdefault((_rate(model, name, recipe.layer_decay), decay, muon), []).append(name)
    if not found:
        raise VitreousError("nothing would learn: the model has no head, so train=head leaves no parameter; drop it")
    return [Group(tuple(names), *treatment) for treatment, names in sorted(found.items(), reverse=True)]


def _kernels(objective: nn.Module) -> Iterable[str]:
    """What is multiplied with inputs: not biases, norms, tokens or position tables. (The paper's code decayed all alike.)"""
    for name, module in objective.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            yield f"{name}.weight" if name else "weight"
        elif isinstance(module, LowRank):
            yield from (f"{name}.a", f"{name}.b")


def _rate(model: Model, name: str, layer_decay: float) -> float:
    """Layer-wise decay: the head learns at the full rate, each block below it at `layer_decay` times the next one's."""
    if layer_decay == 1.0:
        return 1.0
    if not isinstance(model, ViT):
        raise VitreousError(f"layer_decay={layer_decay:g} is for models with layers all alike; {model.config.name} has none")
    block = re.match(r"model\.blocks\.(\d+)\.", name)
    above = name.startswith((*HEAD, "model.norm.", "model.representation.", "model.pool.", "predictor."))
    layer = int(block[1]) + 1 if block else len(model.blocks) + 1 if above else 0
    return layer_decay ** (len(model.blocks) + 1 - layer)


def freeze(objective: nn.Module, recipe: Recipe) -> None:
    """What is in no group neither learns nor costs a backward pass."""
    learning = {name for group in groups(objective, recipe) for name in group.names}
    for name, parameter in objective.named_parameters():
        parameter.requires_grad_(name in learning)


def optimizer(objective: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Adam and Muon with decoupled decay (p -= lr * decay * p), or SGD with momentum and decay in the gradient, as BiT."""
    parameters = dict(objective.named_parameters())
    listed = [
        {**vars(group), "params": [parameters[name] for name in group.names], "weight_decay": group.decay}
        for group in groups(objective, recipe)
    ]
    sharded = any(isinstance(parameter, DTensor) for parameter in parameters.values())
    fused = not sharded  # one pass over memory instead of a dozen; not for tensors in pieces
    betas = (recipe.beta1, recipe.beta2)
    if recipe.optimizer == "muon":
        if sharded:
            raise VitreousError("optimizer=muon needs whole matrices; use --parallel ddp, or --set optimizer=adam")
        return MuonWithAdam(listed, lr=recipe.lr, betas=betas, fused=fused)
    if recipe.optimizer == "adam":
        return torch.optim.AdamW(listed, lr=recipe.lr, betas=betas, eps=1e-8, fused=fused)
    return torch.optim.SGD(listed, lr=recipe.lr, momentum=recipe.momentum, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]


def prepare_state(optimizer: torch.optim.Optimizer, recipe: Recipe) -> None:
    """The tensors that the optimiser keeps, as they are before the first step: a saved state can then be read into them."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if optimizer.state[parameter]:
                continue
            if recipe.optimizer in ("adam", "muon"):  # Muon's own are there already
                optimizer.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device if group.get("fused") else "cpu"),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
            elif recipe.momentum:
                optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
