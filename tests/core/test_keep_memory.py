"""What `keep_memory` promises is counted by the kernel: page faults of a block that is taken and freed again and again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from vitreous.core import device

# In a process of its own: the setting cannot be taken back, and pytest's heap is not the one to measure.
_FAULTS = """
import resource, sys
import numpy as np
from vitreous.core.device import keep_memory
told = keep_memory() if sys.argv[1] == "keep" else None
def work():
    blocks = [np.ones(size * 2**20 // 8) for size in (24, 40, 64)]  # larger than any threshold glibc finds by itself
    return sum(block[-1] for block in blocks)
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    work()
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> tuple[str, int]:
    done = subprocess.run([sys.executable, "-c", _FAULTS, mode], capture_output=True, text=True, check=True)
    told, count = done.stdout.split()
    return told, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives large blocks back at once")
def test_memory_is_taken_from_the_kernel_once() -> None:
    told, kept = faults("keep")
    assert told == "True"
    _, returned = faults("plain")
    assert returned > 4 * 20  # 4 rounds of 128 MB, even if all of it came as pages of 2 MB
    assert kept < returned / 20


@pytest.mark.parametrize("other", [("darwin", ("", "")), ("win32", ("", "")), ("linux", ("", ""))])
def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch, other: tuple[str, tuple[str, str]]) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a C library was opened that has no mallopt")

    monkeypatch.setattr(device.sys, "platform", other[0])
    monkeypatch.setattr(device.platform, "libc_ver", lambda: other[1])
    monkeypatch.setattr(device.ctypes, "CDLL", never)
    assert device.keep_memory() is False


class _Deaf:
    def __init__(self) -> None:
        self.mallopt = lambda name, value: 0  # as glibc answers to what it does not know


class _Without:
    pass


@pytest.mark.parametrize("library", [_Deaf, _Without])
def test_an_allocator_that_does_not_listen_is_reported(monkeypatch: pytest.MonkeyPatch, library: type) -> None:
    monkeypatch.setattr(device.sys, "platform", "linux")
    monkeypatch.setattr(device.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(device.ctypes, "CDLL", lambda _: library())
    assert device.keep_memory() is False
