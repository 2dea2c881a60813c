"""Find the best checkpoint of a run that was interrupted, and the step where it stopped."""

from __future__ import annotations

import re
from pathlib import Path

from vitreous.weights.checkpoint import DOCUMENT

_TAIL = 1 << 14  # bytes of metrics.jsonl, of which the last record is enough


def find_best_so_far(folder: Path) -> tuple[Path | None, str] | None:
    """Of an unfinished run: the folder of its best evaluation, if there was one, and where it stopped. None: it is no such run.

    `folder` is the run, or its `checkpoint`.
    """
    run = folder.parent if folder.name == "checkpoint" else folder
    best = run / "checkpoint" / "best"
    found = best if (best / DOCUMENT).exists() else None
    begun, finished = (run / "state").is_dir() and (run / "log.txt").is_file(), (run / "state" / "done.json").exists()
    if finished or (found is None and not begun):
        return None
    return found, f"unfinished, stopped at {_last_step(run)}"


def _last_step(run: Path) -> str:
    """Where the last record was written; its file may be truncated, as the run was."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            steps = re.findall(rb'^\{"step": (\d{1,15}),', file.read(), re.MULTILINE)
    except OSError:
        steps = []
    return f"step {int(steps[-1]):,}" if steps else "its beginning"
