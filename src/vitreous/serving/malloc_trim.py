"""Returns free memory to the system: glibc keeps what large images leave behind, for each thread by itself."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
    found: Callable[[int], int] = trim
    return found


def trim_memory() -> None:
    """Takes milliseconds, and what the model uses again must be mapped again: for rare occasions."""
    trim = _trim()
    if trim is not None:
        trim(0)
