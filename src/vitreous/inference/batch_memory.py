"""How many images to run through a model at once, where nothing has to be kept for a backward pass.

The model runs once on tensors that have shapes and no data, and what is alive at the worst moment is counted. On an
accelerator as many images as its free memory holds fill it best. On a processor a batch whose intermediate results take
some tens of megabytes already keeps the cores busy: ViT-S/16 at 224 was no faster with 32 images than with 4.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitreous.models.build import allocate_parameters, build_on_meta
from vitreous.models.config import ModelConfig

SHARE = 0.5  # of the free memory: the processes that decode need some too, and the count is of tensors only
PROCESSOR_BYTES = 1 << 27
LARGEST = 1024


class Working(NamedTuple):
    """Bytes at the worst moment of a forward pass, weights not counted."""

    once: int  # however many images there are, as copies of weights in bfloat16
    image: int  # for each image, its pixels included


@cache
def working_memory(config: ModelConfig, precision: str = "float32") -> Working:
    model = build_on_meta(config).eval()
    with (
        torch.no_grad(),
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"),
    ):
        allocate_parameters(model)
        one, two = (_peak(model, images) for images in (1, 2))
    return Working(max(0, 2 * one - two), two - one)


def _peak(model: torch.nn.Module, images: int) -> int:
    config: Any = model.config
    living = _Living()
    with living:
        model(living.seen(torch.empty(images, config.channels, *config.image_size)))
    return living.peak


class _Living(TorchDispatchMode):
    """Adds up the memory of all tensors that were made inside and are still referred to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {
            StorageWeakRef(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and StorageWeakRef(leaf.untyped_storage()) not in inputs:  # a view takes nothing
                self.seen(leaf)
        return out

    def seen(self, tensor: torch.Tensor) -> torch.Tensor:
        self._alive[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        self._alive = {storage: size for storage, size in self._alive.items() if not storage.expired()}
        self.peak = max(self.peak, sum(self._alive.values()))
        return tensor


def fitting_batch(config: ModelConfig, precision: str, device: torch.device, free: int | None, sharing: int = 1) -> int:
    """A power of two. `free` is the device's free memory, None where nobody says; `sharing` processes take of it."""
    needed = working_memory(config, precision)
    budget = None if free is None else int(SHARE * free / sharing) - needed.once
    if device.type == "cpu":
        budget = PROCESSOR_BYTES if budget is None else min(budget, PROCESSOR_BYTES)
    elif budget is None:
        budget = PROCESSOR_BYTES
    fitting = max(1, min(LARGEST, budget // max(1, needed.image)))
    return 1 << (int(fitting).bit_length() - 1)


def free_on(device: torch.device) -> int | None:
    """Free memory of an accelerator, None for a processor, whose memory the system tells."""
    if device.type in ("cuda", "xpu"):
        module: Any = getattr(torch, device.type)
        return int(module.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return None
