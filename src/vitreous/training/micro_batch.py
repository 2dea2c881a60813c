"""How many images go through the model at once: `--micro-batch auto`.

On an accelerator the largest number that fits is the answer: it fills the device. On a processor the caches decide, and
fewer images are often faster; there the candidates are timed, and none is tried that could exhaust the machine's memory,
because a process that asks for too much is killed and not told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch

from vitreous.core.errors import VitreousError
from vitreous.core.memory import free_memory

SHARE = 0.8  # of the free memory: the data's workers, the state that is being saved and others need some too
SECONDS = 20.0  # after which no further candidate is timed
_WORSE = 0.8  # of the best speed, from which on larger ones are not tried: they only get slower
_ALIKE = 0.98  # of the best speed: then the larger one, with fewer passes


def find_micro_batch(
    step: Callable[[int], None],
    largest: int,
    *,
    device: str,
    needed: Callable[[int], int],
    budget_bytes: int | None = None,
) -> tuple[int, str]:
    """The best divisor of `largest`, the images of a step in this process, and a sentence that says why.

    `step` makes one forward and backward pass with so many images, without talking to other processes (one of them may
    run out of memory), and leaves the weights alone. `needed` says how much memory that takes, as `memory_per_device`
    computes it; `budget_bytes` how much there is, where the machine is not to be asked.
    """
    if largest < 1:
        raise VitreousError(f"a micro-batch of at most {largest} images: must be at least 1")
    divisors = [size for size in range(1, largest + 1) if largest % size == 0]
    if torch.device(device).type != "cpu":
        return _largest(step, divisors, device)
    budget = free_memory() if budget_bytes is None else budget_bytes
    if budget is None:
        raise VitreousError("--micro-batch auto: this system does not tell how much memory is free; give a number of images")
    fitting = [size for size in divisors if needed(size) <= SHARE * budget]
    if not fitting:
        raise VitreousError(
            f"--micro-batch auto: one image needs {_giga(needed(1))} and {SHARE:.0%} of what is free are "
            f"{_giga(int(SHARE * budget))}; use a smaller model or --image-size, or --activation-checkpointing"
        )
    return _fastest(step, _spaced(fitting), f"of {_giga(budget)} free, {_giga(needed(fitting[-1]))} at the most")


def _largest(step: Callable[[int], None], divisors: Iterable[int], device: str) -> tuple[int, str]:
    """From the largest down, until one fits. The device tells when it does not, which takes no time."""
    module = getattr(torch, torch.device(device).type)
    for size in sorted(divisors, reverse=True):
        try:
            step(size)
            module.synchronize()
        except torch.OutOfMemoryError:
            fits = False  # outside of the handler, whose traceback holds the tensors
        else:
            fits = True
        if fits:
            return size, f"micro-batch {size}: the largest divisor of the step's images that fits into the memory of {device}"
        module.empty_cache()
    raise VitreousError(
        f"--micro-batch auto: not even one image fits into the memory of {device}; use --activation-checkpointing, "
        f"--parallel fsdp, or a smaller model or --image-size"
    )


def _spaced(sizes: list[int]) -> list[int]:
    """Rising, each at least twice the one before, the last one kept: enough to find the place, few enough to time."""
    chosen: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not chosen or 2 * size <= chosen[-1]:
            chosen.append(size)
    return chosen[::-1]


def _fastest(step: Callable[[int], None], sizes: Iterable[int], memory: str) -> tuple[int, str]:
    speeds: dict[int, float] = {}
    began = time.perf_counter()
    for size in sizes:
        seconds = []
        for _ in range(3 if not speeds else 2):  # the first of all also makes what is made once
            start = time.perf_counter()
            step(size)
            seconds.append(time.perf_counter() - start)
        speeds[size] = size / max(1e-9, min(seconds))
        best = max(speeds.values())
        if speeds[size] < _WORSE * best or time.perf_counter() - began > SECONDS:
            break
    chosen = max(size for size, speed in speeds.items() if speed >= _ALIKE * best)
    listed = ", ".join(f"{size}: {speed:,.3g}" for size, speed in speeds.items())
    return chosen, f"micro-batch {chosen}: the fastest of those timed (images/s by size, {listed}; {memory})"


def _giga(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
