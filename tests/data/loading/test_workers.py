from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitreous.core.errors import VitreousError
from vitreous.data.loading.workers import WorkerDied, run_in_order, set_current_item
from vitreous.data.transforms.decode import BadImage


def square(x: int) -> int:
    set_current_item(f"item {x}")
    return x * x


def who(x: int) -> tuple[int, int]:
    return x, os.getpid()


def dies(x: int) -> int:
    set_current_item(f"photos/{x}.jpg")
    if x == 57:
        faulthandler.disable()  # pytest's: it would print a death that is meant
        os.kill(os.getpid(), signal.SIGSEGV)
    return x


def refuses(x: int) -> int:
    if x == 3:
        raise BadImage("photos/3.jpg", "unreadable", "broken")
    return x


def crashes(x: int) -> float:
    return 1 / (x - 3)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_in_order(workers: int) -> None:
    assert list(run_in_order(square, range(100), workers)) == [x * x for x in range(100)]
    assert list(run_in_order(square, [], workers)) == []


def test_work_is_spread_and_bound() -> None:
    here = os.getpid()
    found = list(run_in_order(who, range(12), 3))
    assert len({pid for _, pid in found} - {here}) == 3
    bound = list(run_in_order(who, range(12), 3, owner=lambda x: x // 4))
    assert [len({pid for x, pid in bound if x // 4 == part}) for part in range(3)] == [1, 1, 1]


def test_a_dead_worker_is_named_with_its_item() -> None:
    with pytest.raises(
        WorkerDied, match=r"photos/57\.jpg: the process that was working on it died \(killed by SIGSEGV\)"
    ) as error:
        list(run_in_order(dies, range(100), 2))
    assert error.value.item == "photos/57.jpg"


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_come_back_as_they_are(workers: int) -> None:
    seen = []
    results = run_in_order(refuses, range(10), workers)
    with pytest.raises(BadImage, match=r"photos/3\.jpg: broken") as error:
        seen.extend(results)
    assert seen == [0, 1, 2]
    assert error.value.kind == "unreadable"


def test_a_bug_brings_its_story() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        list(run_in_order(crashes, range(10), 2))


def test_tasks_are_drawn_only_so_far() -> None:
    drawn = 0

    def tasks() -> Iterator[int]:
        nonlocal drawn
        while True:
            drawn += 1
            yield drawn

    results = run_in_order(square, tasks(), 2, ahead=3)
    assert next(results) == 1
    assert drawn <= 7
    results.close()  # type: ignore[attr-defined]


def test_negative_workers() -> None:
    with pytest.raises(VitreousError, match="--workers is -1"):
        list(run_in_order(square, [1], -1))


PARENT = """
import os, sys, time
from vitreous.data.loading.workers import run_in_order
def who(x):
    return os.getpid()
results = run_in_order(who, iter(int, 1), 3)
print(*{next(results) for _ in range(9)}, flush=True)
time.sleep(1000)
"""


def test_workers_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 3
    parent.kill()
    parent.wait()
    for _ in range(200):
        if not any(_runs(pid) for pid in workers):
            return
        time.sleep(0.1)
    pytest.fail(f"still running: {[pid for pid in workers if _runs(pid)]}")


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
