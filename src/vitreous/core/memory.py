"""How much memory this process may still take: of an accelerator, or by the system and its control groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch

_MEMINFO, _CGROUP, _CGROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_CPU = torch.device("cpu")


def free_memory(device: torch.device = _CPU) -> int | None:
    """Bytes that this process may still take: what the device or the system has, or its control groups leave. None: unknown."""
    if device.type in ("cuda", "xpu"):
        return int(getattr(torch, device.type).mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    try:
        lines = _MEMINFO.read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        try:  # macOS: no such file; half of all memory, since what others use is unknown
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (AttributeError, OSError, ValueError):
            return None
    return min([free, *_cgroup_limits()])


def _cgroup_limits() -> Iterable[int]:
    """What each control group above this process leaves, version 2 or 1. Cached file pages count as free: they give way."""
    with contextlib.suppress(OSError, ValueError):
        for line in _CGROUP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            names = ("memory.max", "memory.current") if not controllers else ("memory.limit_in_bytes", "memory.usage_in_bytes")
            root = _CGROUPS / controllers if controllers else _CGROUPS
            inner = root / path.lstrip("/")
            for folder in (inner, *inner.parents):
                if not folder.is_relative_to(root):
                    break
                # A container may see its own group as the root, and not the path that leads there.
                with contextlib.suppress(OSError, ValueError):
                    limit = int((folder / names[0]).read_text())  # "max" is not a number: no limit
                    yield max(0, limit - int((folder / names[1]).read_text()) + _count_page_cache(folder))


def _count_page_cache(folder: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0
