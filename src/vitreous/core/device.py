"""Choose the device, threads and precision to run with, and keep freed memory in the process.

CPUs announce more than they do. Some virtual machines announce AMX, whose tiles make bfloat16 fast, but hide the
description of the tiles; the first bfloat16 layer then dies of an illegal instruction and takes the program with it. And
where bfloat16 runs without such tiles, it is often slower than float32. So neither is looked up: a child process tries.

A forked child has this process's oneDNN, which matters: oneDNN reads its limit, `ONEDNN_MAX_CPU_ISA`, once. Found by
experiment with torch 2.13 (`tests/core/test_device.py` repeats it): importing torch, making tensors, creating a model and
initialising its weights leave the limit open; a matrix product, a convolution, attention or GELU in float32 fix it. So
`choose_precision` belongs before the first forward pass. If it comes later, the limit has no effect, the second child
dies like the first, and bfloat16 is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import multiprocessing as mp
import os
import platform
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vitreous.core.errors import VitreousError, one_line

PrecisionOption = Literal["auto", "float32", "bfloat16"]
PrecisionName = Literal["float32", "bfloat16"]

VARIABLE = "ONEDNN_MAX_CPU_ISA"
LIMIT = "AVX512_CORE_BF16"  # all but the tiles
WORTH = 1.2  # times float32's speed, from which `auto` gives up digits for it
PATIENCE = 30.0  # seconds; a trial takes one or two

_CPUINFO = Path("/proc/cpuinfo")
_ROWS, _WIDTH, _HIDDEN = 1024, 384, 1536  # the first layer of ViT-S's MLP, five images of 197 tokens
_REPEATS, _SECONDS = 6, 1.0  # at most: where bfloat16 is imitated, once is enough to tell


class Precision(NamedTuple):
    name: PrecisionName
    note: str | None  # one line for the user: what was found, where it is not what one would expect


class Trial(NamedTuple):
    """How a child process fared with bfloat16."""

    speed: float | None = None  # as a multiple of float32's; None where it did not come to the end
    fault: str | None = None  # then: what ended it
    limited: bool = False  # it needed the limit to survive


# Devices ---------------------------------------------------------------------------------------------------------------


def choose_device(requested: str = "auto") -> str:
    """The device to run on. "auto" takes the first accelerator there is, "cuda:1" a certain one."""
    present = _count_devices()
    if requested == "auto":
        return next(iter(present))
    kind, _, index = requested.partition(":")
    if kind not in present or (index and not (index.isdecimal() and int(index) < present[kind])):
        here = ", ".join(
            kind if count == 1 else f"{kind} ({count} of them, {kind}:0 to {kind}:{count - 1})"
            for kind, count in present.items()
        )
        raise VitreousError(f"--device {requested}: not on this machine or not in this torch; here there is {here}")
    return requested


def _count_devices() -> dict[str, int]:
    """How many there are of each kind, the best first."""
    import torch

    found = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "xpu": torch.xpu.device_count() if torch.xpu.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    return {kind: count for kind, count in found.items() if count}


@contextlib.contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """So many threads inside, or as many as there are; set in any case, so that libraries below do not change it later."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seed_generators(seed: int, device: Any) -> None:
    """As torch.manual_seed, of this device and the CPU alone: for devices that never start, that formats a stack each time."""
    import torch

    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


# Memory ----------------------------------------------------------------------------------------------------------------

# From malloc.h. The thresholds are C integers, and 2 GB is the most that one can say.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_LARGEST_THRESHOLD = 2**31 - 1


def keep_memory() -> bool:
    """Let freed memory stay with the process, whatever its size; whether this C library agreed.

    glibc asks the kernel for every large block and returns it as soon as it is freed. The activations of a training step
    are such blocks, so each step the kernel maps, zeroes and unmaps all of them again, page by page, on one core while the
    others wait; docs/log.md has what it costs. Blocks that stay in the heap are reused as they are.

    The process then holds the most that it ever needed at one time, and a little more for the gaps between blocks, until it
    ends. Only glibc is like this: musl, macOS, Windows and replaced allocators are left as they are. Memory of CUDA devices
    is kept by torch itself. Nothing is changed for child processes that are newly started; forked ones inherit it.
    """
    glibc = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if glibc else None
    if mallopt is None:
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    # All three are needed: a threshold alone is overruled as soon as the heap's top is trimmed.
    limits = {_M_MMAP_MAX: 0, _M_MMAP_THRESHOLD: _LARGEST_THRESHOLD, _M_TRIM_THRESHOLD: _LARGEST_THRESHOLD}
    agreed = [mallopt(option, limit) for option, limit in limits.items()]
    return all(agreed)


# Precision -------------------------------------------------------------------------------------------------------------


def choose_precision(requested: PrecisionOption, device: str) -> Precision:
    """The precision to train in: bfloat16 where it is requested or pays, never where it would kill the process.

    The weights stay float32 either way (the loop's autocast decides what is computed in bfloat16), so bfloat16 costs
    digits in the products and not in the optimiser.
    """
    if requested not in ("auto", "float32", "bfloat16"):
        raise VitreousError(f"--precision {requested}: it must be auto, float32 or bfloat16")
    if requested == "float32":
        return Precision("float32", None)
    kind = device.partition(":")[0]
    if kind == "cpu":
        return _choose_on_cpu(requested)
    return _choose_on_accelerator(requested, kind, device)


def _choose_on_accelerator(requested: PrecisionOption, kind: str, device: str) -> Precision:
    import torch

    if kind == "mps":
        if requested == "auto":
            return Precision("float32", None)
        return Precision("bfloat16", "bfloat16 on mps has not been tried by the authors of vitreous")
    module: Any = torch.xpu if kind == "xpu" else torch.cuda
    with module.device(device):
        supported = bool(module.is_bf16_supported(including_emulation=False))
    if supported:
        return Precision("bfloat16", None)
    if requested == "auto":
        return Precision("float32", f"float32, because {device} has no bfloat16 arithmetic")
    return Precision("bfloat16", f"{device} has no bfloat16 arithmetic and only imitates it; float32 is likely to be faster")


def _choose_on_cpu(requested: PrecisionOption) -> Precision:
    if requested == "auto" and not _claims_bfloat16():
        return Precision("float32", None)
    trial = try_bfloat16()
    if trial.speed is None:
        if requested == "auto":
            return Precision("float32", f"float32, because bfloat16 does not run in this process ({trial.fault})")
        raise VitreousError(
            f"--precision bfloat16: it does not run in this process ({trial.fault}); "
            f"use float32, or set {VARIABLE}={LIMIT} in the environment and start again"
        )
    limit = f"; this processor's AMX is not usable, so oneDNN is limited to {LIMIT}" if trial.limited else ""
    if requested == "auto" and trial.speed < WORTH:
        return Precision("float32", f"float32, because bfloat16 has {trial.speed:.2g} times its speed here{limit}")
    slow = "" if trial.speed >= 1 else " and saves memory only"
    return Precision("bfloat16", f"bfloat16 has {trial.speed:.2g} times the speed of float32 here{slow}{limit}")


def _claims_bfloat16() -> bool:
    """Whether the processor claims arithmetic in bfloat16 (x86 `flags`, Arm `Features`); unknown counts as yes."""
    try:
        text = _CPUINFO.read_text()
    except OSError:
        return True
    return "bf16" in text


# The trial -------------------------------------------------------------------------------------------------------------


@functools.cache
def try_bfloat16() -> Trial:
    """bfloat16 in a child process, with the limit if it needs that, which then holds for this process too."""
    if not _can_fork():
        # A fresh process tells what the processor does, but not whether a limit still takes effect in this one.
        return _try_in_new_process()
    first = _try_in_fork(_measure_speedup)
    if first.speed is not None or "SIGILL" not in (first.fault or ""):
        return first
    before = dict(os.environ)
    os.environ[VARIABLE] = LIMIT
    second = _try_in_fork(_measure_speedup)
    if second.speed is not None:
        return second._replace(limited=True)
    os.environ.pop(VARIABLE)
    os.environ.update(before)
    return second


def avoid_amx_trap() -> None:
    """Let libraries that bring a oneDNN of their own (OpenVINO) stay clear of AMX where its first tile would kill them.

    Before such a library's first operation. That torch's oneDNN has run already does not matter to theirs.
    """
    if VARIABLE in os.environ or not _claims_amx():
        return
    trial = try_bfloat16()  # sets the limit where that helps
    if trial.speed is None and "SIGILL" in (trial.fault or ""):
        os.environ[VARIABLE] = LIMIT


def processor_name() -> str:
    """As the processor calls itself, where the system tells."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _claims_amx() -> bool:
    try:
        return "amx_tile" in _CPUINFO.read_text()
    except OSError:
        return False


def _can_fork() -> bool:
    return "fork" in mp.get_all_start_methods() and sys.platform != "darwin"  # Apple's libraries do not survive a fork


def _measure_speedup() -> float:
    """bfloat16's speed over float32's, in a layer of a ViT forward and backward. bfloat16 is first: it may be the end.

    The backward products are written out: autograd would start threads, of which a forked child may have none. One
    thread, because those of the parent are not here; tiles belong to a core, so the ratio holds for many.
    """
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(1)
    with torch.inference_mode():
        best = {torch.bfloat16: float("inf"), torch.float32: float("inf")}
        query = torch.ones(2, 3, 197, 64, dtype=torch.bfloat16)
        F.scaled_dot_product_attention(query, query, query)  # has kernels of its own, with the same tiles
        start = time.perf_counter()
        for _ in range(_REPEATS):
            for kind in best:
                x, w = torch.ones(_ROWS, _WIDTH, dtype=kind), torch.ones(_HIDDEN, _WIDTH, dtype=kind)
                b, g = torch.ones(_HIDDEN, dtype=kind), torch.ones(_ROWS, _HIDDEN, dtype=kind)
                began = time.perf_counter()
                F.linear(x, w, b)
                torch.mm(g, w)
                torch.mm(g.T, x)
                best[kind] = min(best[kind], time.perf_counter() - began)
            if time.perf_counter() - start > _SECONDS:
                break
    return best[torch.float32] / best[torch.bfloat16]


def _try_in_fork(measure: Callable[[], float]) -> Trial:
    context = mp.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run_child, args=(measure, theirs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the child uses one only
            process.start()
        theirs.close()
        process.join(PATIENCE)
        if process.is_alive():
            return Trial(fault=f"a trial of it did not end within {PATIENCE:.0f} s")
        with contextlib.suppress(EOFError):
            return ours.recv() if ours.poll() else _describe_death(process.exitcode)
        return _describe_death(process.exitcode)
    except OSError as error:  # no process or no descriptor left
        return Trial(fault=f"a trial of it could not begin: {one_line(error)}")
    finally:
        if process.pid is not None:
            process.kill()  # nothing where it has ended
            process.join()
        ours.close()


def _run_child(measure: Callable[[], float], theirs: Any) -> None:
    """In the child: measure, tell, and leave no trace of a death that was expected."""
    faulthandler.disable()
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # not the parent's handlers, which save a run
    try:
        trial = Trial(speed=measure())
    except Exception as error:
        trial = Trial(fault=one_line(error))
    theirs.send(trial)


def _describe_death(code: int | None) -> Trial:
    if code is not None and code < 0:
        return Trial(fault=f"a trial of it died of {signal.Signals(-code).name}")
    return Trial(fault=f"a trial of it ended with code {code}")


def _try_in_new_process() -> Trial:
    """Where there is no fork: a new interpreter."""
    command = [sys.executable, "-c", "from vitreous.core import device; print(device._measure_speedup())"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Trial(fault=f"a trial of it failed: {one_line(error)}")
    if done.returncode:
        return _describe_death(done.returncode)
    return Trial(speed=float(done.stdout.split()[-1]))
