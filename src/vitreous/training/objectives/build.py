"""The objective of a run, by its recipe's name for it, around a model that is new or begins with given weights."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch.utils.checkpoint import checkpoint as recompute

from vitreous.core.errors import VitreousError
from vitreous.data.sampling import derive_key
from vitreous.inference.engines.torch_engine import check_compiler
from vitreous.models.build import Model, allocate_parameters, build_on_meta, build_with_tensors
from vitreous.models.config import ModelConfig
from vitreous.models.vit import ViT
from vitreous.training.config import RunConfig
from vitreous.training.lora import add_lora
from vitreous.training.objectives.classification import Classification
from vitreous.training.objectives.masked_patch import MaskedPatches
from vitreous.training.objectives.objective import Objective

OBJECTIVES: Mapping[str, type[Objective]] = {"classification": Classification, "masked-patch": MaskedPatches}


def build_objective(config: RunConfig) -> Objective:
    """The model with its loss, initialised by the seed alone: every rank makes the same."""
    torch.manual_seed(derive_key("initialise", config.options.seed))
    model: Model
    if config.start is None:
        model = allocate_parameters(build_on_meta(config.model))
        model.initialise()
    else:
        model = build_with_tensors(config.model, {name: tensor.clone() for name, tensor in config.start.items()})
    if isinstance(model, ViT):
        model.lean = True  # the last layer only for the tokens that are read
    if config.recipe.train == "lora":
        if config.options.parallel != "ddp":
            raise VitreousError(
                f"--parallel {config.options.parallel}: --train lora merges whole matrices to validate; use --parallel ddp"
            )
        add_lora(model, config.recipe.lora_rank, config.recipe.lora_scale)
    if config.options.activation_checkpointing:
        checkpoint_activations(model)
    if config.options.engine == "compile":
        _compile(model, config.device)
    return OBJECTIVES[config.recipe.objective].from_config(model, config)


def trial_pass(objective: Objective, config: ModelConfig, images: int, precision: str, device: str = "cpu") -> None:
    """Forward and backward, once, on black images; the weights and their gradients are as before."""
    pixels = torch.zeros(images, config.channels, *config.image_size, device=device)
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16"):
        losses, _ = objective(pixels, torch.zeros(images, max(1, config.classes), device=device))
    losses.sum().backward()
    objective.zero_grad(set_to_none=True)
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize()


def checkpoint_activations(model: Model) -> None:
    """Keep only what enters each block, and compute the rest again in the backward pass: less memory, a third more work."""
    if not isinstance(model, ViT):
        raise VitreousError(f"--activation-checkpointing is for models with blocks; {model.config.name} has none")
    for block in model.blocks:
        block.forward = functools.partial(recompute, block.forward, use_reentrant=False)


def _compile(model: Model, device: str) -> None:
    check_compiler(device)
    for block in model.blocks if isinstance(model, ViT) else [model]:
        block.compile()
