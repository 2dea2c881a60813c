"""How much memory is free: by the system, by control groups of both versions, in containers, and where nobody tells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vitreous.core.memory import free_memory

module = sys.modules["vitreous.core.memory"]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, path in (("_MEMINFO", "meminfo"), ("_CGROUP", "cgroup"), ("_CGROUPS", "groups")):
        monkeypatch.setattr(module, name, tmp_path / path)
    (tmp_path / "meminfo").write_text("MemTotal:  32000 kB\nMemFree:  100 kB\nMemAvailable:   20000 kB\n")
    (tmp_path / "groups").mkdir()
    return tmp_path


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".", 1)).write_text(text)


def test_free_memory_of_the_system(system: Path) -> None:
    assert free_memory() == 20_000 * 1024


def test_a_group_leaves_less(system: Path) -> None:
    (system / "cgroup").write_text("0::/user/job\n")
    group(system / "groups/user/job", memory__max="max\n", memory__current="7000000\n")
    assert free_memory() == 20_000 * 1024
    group(
        system / "groups/user",
        memory__max="9000000\n",
        memory__current="8000000\n",
        memory__stat="anon 1\ninactive_file 500000\n",
    )
    assert free_memory() == 1_500_000


def test_a_container_sees_its_group_as_the_root(system: Path) -> None:
    (system / "cgroup").write_text("0::/not/seen/from/here\n")
    group(system / "groups", memory__max="9000000\n", memory__current="8000000\n")
    assert free_memory() == 1_000_000


def test_the_first_version_of_groups(system: Path) -> None:
    (system / "cgroup").write_text("5:cpu:/x\n4:memory:/x\n0::/\n")
    group(system / "groups/memory/x", memory__limit_in_bytes="5000000\n", memory__usage_in_bytes="9000000\n")
    assert free_memory() == 0  # over its limit already


def test_where_no_file_tells(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (system / "meminfo").unlink()
    answers = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(module.os, "sysconf", answers.__getitem__, raising=False)
    assert free_memory() == 2_048_000
    monkeypatch.delattr(module.os, "sysconf")
    assert free_memory() is None
