"""Keep the memory of one step for the next.

glibc asks the kernel for every large block and gives it back as soon as it is freed. The activations of a training step
are such blocks, so each step the kernel maps, zeroes and unmaps all of them anew, page by page. This is done by one core
while the others wait; docs/log.md has what it costs. Blocks that stay in the heap are used again as they are.
"""

from __future__ import annotations

import ctypes
import platform
import sys

# From malloc.h. The thresholds are C integers, and 2 GB is the most that one can say.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_MOST = 2**31 - 1


def keep_memory() -> bool:
    """Let freed memory stay with the process, whatever its size; whether this C library was told.

    The process then holds the most that it ever needed at one time, and a little more for the gaps between blocks, until it
    ends. Only glibc is like this: musl, macOS, Windows and replaced allocators are left as they are. Memory of CUDA devices
    is kept by torch itself. Nothing is changed for child processes that are started anew; forked ones inherit it.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    # All must be told: a threshold alone is overruled as soon as the heap's top is trimmed.
    told = [mallopt(_M_MMAP_MAX, 0), mallopt(_M_MMAP_THRESHOLD, _MOST), mallopt(_M_TRIM_THRESHOLD, _MOST)]
    return all(told)
