"""The child process: builds its work, writes its outputs, then works in turns. `python -m vitreous.bench.contender`.

The first line on stdin is the work. The reply says that its outputs are in `folder`. Then each line is a number of steps,
and the reply their seconds; 0, or the end of stdin, ends it. What libraries print goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitreous.bench.race import Work
from vitreous.core.errors import one_line
from vitreous.core.untrusted_json import parse_json

Step = Callable[[], Any]


def build(work: Work, leaving: contextlib.ExitStack) -> Step:
    """A function that does one step. The stack is left when there are no more."""
    if work.precision != "float32":
        from vitreous.core.device import try_bfloat16

        try_bfloat16()  # sets oneDNN's limit where the processor announces tiles that it does not have
    if work.what == "matmul":
        from vitreous.bench.machine import matmul_step

        return matmul_step()
    if work.what == "export":
        from vitreous.bench import exported_ours, exported_peers

        (exported_ours if work.library == "vitreous" else exported_peers).write_exported(work)
        return lambda: None
    if work.what == "cold start":
        from vitreous.bench.cold_start import start_step

        return start_step(work)
    if work.what == "serving":
        from vitreous.bench.serving_load import serving_step

        return serving_step(work, leaving)
    if work.what == "loader":
        from vitreous.bench.loaders import loader_step

        return loader_step(work)
    from vitreous.bench.model_steps import model_step

    return model_step(work, leaving)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    with contextlib.ExitStack() as leaving:
        try:
            work = Work(**parse_json(sys.stdin.readline()))
            step = build(work, leaving)
            now = time.perf_counter if work.clock == "wall" else _processor_time
            reply(ready=True)
            while count := int(sys.stdin.readline() or 0):
                began = now()
                own = [step() for _ in range(count)]
                # A step that returns seconds has work around it that does not count.
                spent = sum(own) if isinstance(own[0], float) else now() - began
                reply(seconds=spent / count, peak_memory=_peak_memory())
        except Exception as error:
            reply(error=one_line(error))


def _processor_time() -> float:
    """Seconds of all threads, and of programs that were started and waited for: what a busy machine disturbs least."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _peak_memory() -> int:
    """Bytes in memory at most: of this process, or of a program that it started and waited for (cold start)."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    with contextlib.suppress(OSError, StopIteration):  # on Linux the former also counts the program that started this one
        status = Path("/proc/self/status").read_text().splitlines()
        own = next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    return children if "torch" not in sys.modules else own


if __name__ == "__main__":
    main()
