"""What has been measured so far, on disk: one line for each task and seed, and whose lines they are.

A folder belongs to one model and one protocol. What is there already is not measured again; what belongs to another model or
protocol is refused, with the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitreous.core.distributed import World, broadcast_or_raise
from vitreous.core.errors import VitreousError, first_few, one_line
from vitreous.core.files import write_text
from vitreous.core.untrusted_json import parse_json, read_json
from vitreous.training.run_folder import RunFolder, difference

STUDY, RESULTS, SWEEP = "study.json", "results.jsonl", "sweep.jsonl"


class Results:
    """Lines of JSON, rewritten whole with each new one: a kill leaves the old file or the new one."""

    def __init__(self, path: Path, world: World) -> None:
        self.path, self.world = path, world
        self.rows: list[dict[str, Any]] = broadcast_or_raise(world, lambda: _read(path))

    def find(self, **wanted: Any) -> dict[str, Any] | None:
        return next((row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())), None)

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append(dict(row))
        if self.world.is_main:
            write_text(self.path, "".join(json.dumps(own) + "\n" for own in self.rows))


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            row = parse_json(line)
            good = isinstance(row["task"], str) and 0 <= row["accuracy"] <= 1
        except (ValueError, TypeError, KeyError):
            good = False
        if not good:
            raise VitreousError(f"{path} line {number}: is no result of this program; remove it, to have it measured again")
        rows.append(row)
    return rows


def claim(out: Path, study: Mapping[str, Any], world: World) -> RunFolder:
    """The folder, locked for this process; refused if it holds something else. Tasks may be added from start to start."""
    folder = RunFolder(out, world)
    broadcast_or_raise(world, lambda: _claim(folder, study))
    return folder


def _claim(folder: RunFolder, study: Mapping[str, Any]) -> None:
    out = folder.path
    if out.exists() and not out.is_dir():
        raise VitreousError(f"--out {out}: is a file; a folder is needed")
    old = _study(out)
    if old is None:
        if out.exists() and any(not _left_over(entry) for entry in out.iterdir()):
            raise VitreousError(f"--out {out}: is not empty and no study of this program; choose another folder")
        old = {}
    else:
        tasks = {name: task for name, task in study["tasks"].items() if name in old["tasks"]}
        differences = difference(
            {**old, "tasks": {name: old["tasks"][name] for name in tasks}}, {**study, "tasks": tasks}
        )  # fmt: skip
        if differences:
            listed = first_few([str(found) for found in differences], 6)
            raise VitreousError(
                f"--out {out}: holds results of another model or protocol ({listed}); give the same again, or "
                f"choose another --out"
            )
    merged = {**study, "tasks": {**old.get("tasks", {}), **study["tasks"]}}
    if merged != old:
        write_text(out / STUDY, json.dumps(merged, indent=1, ensure_ascii=False) + "\n")
    folder.lock()


def _study(out: Path) -> dict[str, Any] | None:
    path = out / STUDY
    if not path.exists():
        return None
    try:
        found = read_json(path)
        good = isinstance(found, dict) and isinstance(found["tasks"], dict)
    except (OSError, ValueError, KeyError) as error:
        raise VitreousError(f"{path}: cannot be read ({one_line(error)}); restore it, or choose another --out") from error
    if not good:
        raise VitreousError(f"{path}: is no study of this program; restore it, or choose another --out")
    return found


def _left_over(entry: Path) -> bool:
    """Of a start that was killed at once."""
    return entry.name.startswith(".") and entry.name.endswith(".part")
