"""The estimate against what torch's profiler sees allocated in a real step, and against sums done by hand."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.build import allocate_parameters, build_on_meta
from vitreous.models.cost import compute_cost
from vitreous.models.names import parse_name
from vitreous.models.vit import ViT
from vitreous.training.memory import memory_per_device
from vitreous.training.objectives.masked_patch import MaskedPatches
from vitreous.training.recipes.recipe import MaskTarget

SMALL = dict(image_size=32, classes=10, width=96, depth=2, heads=3)


def peak_of_a_step(
    name: str, micro_batch: int, optimizer: str, precision: str, checkpointing: bool, average: bool, **shape: Any
) -> int:
    """The most bytes that are allocated at a time, from the model's making to the end of a step of two micro-batches."""
    config = parse_name(name, **shape)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        model = allocate_parameters(build_on_meta(config))
        model.initialise()
        if checkpointing:
            assert isinstance(model, ViT)
            for block in model.blocks:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
        parameters = list(model.parameters())
        copies = [p.detach().clone() for p in parameters] if average else []
        optimiser: torch.optim.Optimizer
        if optimizer == "adam":
            optimiser = torch.optim.AdamW(parameters, fused=True)
        else:
            optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True)
        for step in range(2):  # the first makes the optimiser's state
            for _ in range(1 if step == 0 else 2):
                images = torch.ones(micro_batch, config.channels, *config.image_size)
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                    loss = model(images).float().logsumexp(1).sum()
                loss.backward()
                del loss, images
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
    assert len(copies) == (len(parameters) if average else 0)
    return largest(profiler)


def largest(profiler: profile) -> int:
    now = peak = 0
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize(
    ("name", "micro_batch", "optimizer", "precision", "checkpointing", "average", "shape"),
    [
        ("ViT-Ti/4", 16, "adam", "float32", False, False, SMALL),
        ("ViT-Ti/4", 32, "sgd", "float32", True, True, SMALL),
        ("ViT-Ti/4", 2, "adam", "bfloat16", False, False, SMALL),
        ("ViT-Ti/4", 2, "adam", "bfloat16", True, False, SMALL),
        (
            "ViT-Ti/16",
            4,
            "adam",
            "float32",
            False,
            True,
            dict(image_size=64, classes=100, depth=3, pool="gap", representation=192),
        ),
        ("R26x1", 2, "sgd", "float32", False, False, dict(image_size=32, classes=10)),
    ],
)
def test_a_real_step_needs_what_is_computed(
    name: str, micro_batch: int, optimizer: Any, precision: Any, checkpointing: bool, average: bool, shape: dict[str, Any]
) -> None:
    """Within 3 %."""
    estimate = memory_per_device(
        parse_name(name, **shape),
        micro_batch=micro_batch,
        optimizer=optimizer,
        precision=precision,
        average=average,
        activation_checkpointing=checkpointing,
    )
    measured = peak_of_a_step(name, micro_batch, optimizer, precision, checkpointing, average, **shape)
    assert 0.97 <= measured / estimate.total <= 1.03, (measured, estimate)


def masked(model: Any, target: MaskTarget) -> MaskedPatches:
    return MaskedPatches(model, 0.5, target, Preprocess("range(-1,1)"))


@pytest.mark.parametrize("target", ["mean", "downsized", "pixels"])
def test_masked_patches_need_what_is_computed(target: MaskTarget) -> None:
    """The answers of `downsized`, 8,192 numbers a patch, are most of it."""
    config = parse_name("ViT-Ti/4", **{**SMALL, "classes": 0}, mask_token=True)
    estimate = memory_per_device(config, micro_batch=16, optimizer="adam", objective=lambda model: masked(model, target))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        model = allocate_parameters(build_on_meta(config))
        model.initialise()
        assert isinstance(model, ViT)
        objective = masked(model, target)
        optimiser = torch.optim.AdamW(objective.parameters(), fused=True)
        for _ in range(2):
            losses, sums = objective(torch.zeros(16, 3, 32, 32))
            losses.sum().backward()
            del losses, sums
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
    measured = largest(profiler)
    assert 0.9 <= measured / estimate.total <= 1.03, (measured, estimate)


@pytest.mark.parametrize(
    ("name", "shape"), [("ViT-Ti/4", SMALL), ("R26x1", dict(image_size=64)), ("R50+ViT-Ti/16", dict(image_size=64, depth=2))]
)
def test_parts_agree_with_cost(name: str, shape: dict[str, Any]) -> None:
    config = parse_name(name, **shape)
    cost = compute_cost(config)
    memory = memory_per_device(config, micro_batch=7, optimizer="adam")
    assert memory.parameters == memory.gradients == 4 * cost.parameters
    assert memory.optimizer == 8 * cost.parameters
    assert memory.average == 0
    assert 7 * cost.activation_bytes < memory.activations  # and what operations need for themselves
    assert memory_per_device(config, micro_batch=7, optimizer="sgd").optimizer == 4 * cost.parameters


def test_checkpointing_by_hand() -> None:
    """Each block keeps what enters it, (N, D) numbers; one is computed again in the backward pass."""
    shallow, deep = parse_name("ViT-Ti/4", **SMALL), parse_name("ViT-Ti/4", **{**SMALL, "depth": 5})
    more = {
        kept: memory_per_device(deep, micro_batch=3, activation_checkpointing=kept).activations
        - memory_per_device(shallow, micro_batch=3, activation_checkpointing=kept).activations
        for kept in (True, False)
    }
    assert more[True] == 3 * 3 * 65 * 96 * 4  # three blocks more, three images
    assert more[False] > 10 * more[True]


def test_sharding_by_hand() -> None:
    config = parse_name("ViT-L/16", image_size=224, classes=1000, depth=3)
    whole = memory_per_device(config, micro_batch=1, average=True, processes=16, shard=1)
    divided = memory_per_device(config, micro_batch=1, average=True, processes=16, shard=8)
    numbers = compute_cost(config).parameters
    for part, times in (("parameters", 4), ("gradients", 4), ("optimizer", 8), ("average", 4)):
        assert getattr(whole, part) == times * numbers
        assert 8 * getattr(divided, part) == times * numbers
    assert divided.activations == whole.activations
    block = 4 * 1024 * 1024 + 4 * 1024 + 2 * 4096 * 1024 + 5 * 1024 + 4 * 1024  # attention, MLP, norms: weights and biases
    outside = (3 * 256 + 1 + 1 + 197 + 2) * 1024 + 1025 * 1000  # patches, token, positions, norm; head
    assert numbers == 3 * block + outside
    assert divided.buffers - whole.buffers == 4 * (5 * block + 2 * outside)


def test_accumulation_by_hand() -> None:
    """Measured with two processes: without sending, FSDP's gradients are whole, and DDP's are there twice."""
    config = parse_name("ViT-Ti/4", **SMALL)
    numbers = compute_cost(config).parameters
    at_once, in_parts = (memory_per_device(config, micro_batch=1, passes=n, processes=4, shard=4) for n in (1, 3))
    assert (at_once.gradients, in_parts.gradients) == (numbers, 4 * numbers)
    assert in_parts.buffers == at_once.buffers
    at_once, in_parts = (memory_per_device(config, micro_batch=1, passes=n, processes=4) for n in (1, 3))
    assert (at_once.gradients, in_parts.gradients) == (4 * numbers, 4 * numbers)
    assert in_parts.buffers - at_once.buffers == 4 * numbers
    alone = memory_per_device(config, micro_batch=1, passes=3)
    assert alone == memory_per_device(config, micro_batch=1)


def test_bfloat16_halves_most_of_it() -> None:
    config = parse_name("ViT-S/16", image_size=224, depth=3)
    full = memory_per_device(config, micro_batch=64)
    half = memory_per_device(config, micro_batch=64, precision="bfloat16")
    assert 0.5 < half.activations / full.activations < 0.65  # the residual stream and the norms stay float32
    assert half.parameters == full.parameters


def test_the_caller_s_mode_does_not_matter() -> None:
    config = parse_name("ViT-Ti/4", **{**SMALL, "width": 48})
    with torch.inference_mode():
        inside = memory_per_device(config, micro_batch=1)
    assert memory_per_device(config, micro_batch=1) == inside
    assert inside.activations > 0


def test_a_resnet_has_no_blocks_to_compute_again() -> None:
    with pytest.raises(VitreousError, match="R26x1 has none"):
        memory_per_device(parse_name("R26x1", image_size=64), micro_batch=1, activation_checkpointing=True)
