"""Runs in a folder, for a page that watches them: the list, the progress and the growing curves of each.

Everything here was written by somebody else, perhaps just now, and is untrusted. A line may be half written, a number may
be none, a folder may go away between two looks; nothing of it is an error of the one who watches. A run is named by its path
below the folder, and a name is looked up among those that were found: it is never made into a path.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.core.files import is_locked
from vitreous.core.printable import printable
from vitreous.core.untrusted_json import parse_json
from vitreous.reports.series import Floats, number
from vitreous.serving.run_metrics import LONGEST, Metrics, plain_file, record_of
from vitreous.training.mistakes import MISTAKES
from vitreous.training.run_folder import CONFIG, DONE, LOCK, METRICS

DEEP = 3  # folders below the one that is watched
LISTED = 200  # runs, the newest
ENTRIES = 50_000  # looked at in a search; a data set may lie beside the runs
KEPT = 24  # runs whose curves are remembered
DOCUMENT = 8 << 20  # bytes of a config or of the mistakes
TAIL = 1 << 18  # bytes at a file's end that are searched for its last evaluation
QUIET = 300.0  # seconds without a record after which a run counts as stopped, where nothing else tells
SETTLED = 30.0  # the same, where nobody holds its lock: copies of a run that continues elsewhere grow without one

_INSIDE = ("checkpoint", "state")  # of a run: nothing to search
_NESTED = 40  # levels of a setting


class UnknownRun(VitreousError):
    """No run has this name, or it has gone away."""


@dataclass(frozen=True)
class Listing:
    runs: list[dict[str, Any]]
    """The newest first."""
    left_out: int
    """Older ones, beyond `LISTED`; none is forgotten, their names can still be asked for."""


def listing(folder: Path) -> Listing:
    found = _found(folder)
    with _lock:
        _searched[folder] = found
    dated = sorted(((_changed(path), name) for name, path in found.items()), key=lambda pair: (-pair[0], pair[1]))
    runs = []
    for changed, name in dated[:LISTED]:
        if changed >= 0:  # it is still there
            runs.append({"name": name, **_summary(found[name])})
    return Listing(runs, max(0, len(dated) - LISTED))


def run_view(folder: Path, name: str, after: int = -1) -> dict[str, Any]:
    """A run's curves, its settings and its worst mistakes.

    With `after`, only the points of later steps: then `config`, `result` and `mistakes`, which were told before, are empty. A
    `generation` other than before means that the run has forgotten what it had measured, and that all must be asked for anew;
    another `mistakes_at`, that an evaluation has found other mistakes; `complete` is false where the file is so long that the
    next answer has more of it.
    """
    path = _known(folder, name)
    metrics = _remembered(path / METRICS)
    with metrics.lock:
        try:
            metrics.look()
        except FileNotFoundError:  # a run that has just begun has measured nothing
            if not (path / CONFIG).exists():
                raise UnknownRun(f"no run {name!r} any more; GET /runs lists those that are there") from None
        except OSError as error:
            raise UnknownRun(f"run {name!r}: its {METRICS} cannot be read ({error.strerror or error})") from error
        series = _series(metrics, after)
        about = {"generation": metrics.generation, "complete": not metrics.unread, "skipped": metrics.skipped}
        about |= {"values_left_out": metrics.left_out}
    whole = after < 0
    kept = _mistakes(path / MISTAKES) if whole else {}
    return {
        "name": name,
        **_summary(path),
        **about,
        "config": _config(path) if whole else {},
        "result": _document(path / DONE) if whole and _here(path / DONE, folder) else {},
        "series": series,
        "mistakes": kept.get("mistakes", []),
        "mistakes_of": kept.get("of"),
        "mistakes_at": _written(path / MISTAKES),
    }


# Which there are --------------------------------------------------------------------------------------------------------------


def _found(folder: Path) -> dict[str, Path]:
    """Runs by name. Hidden folders and links are not entered: a link may lead out of the folder, or in a circle."""
    found: dict[str, Path] = {}
    left = ENTRIES

    def search(path: Path, parts: tuple[str, ...]) -> None:
        nonlocal left
        is_run = _is_run(path)
        if is_run:
            name = printable("/".join(parts or (path.resolve().name,)))
            while name in found:
                name += "~"
            found[name] = path
        if len(parts) == DEEP:
            return
        try:
            with os.scandir(path) as entries:
                inside = []
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        inside.append(entry.name)
        except OSError:  # gone, or not ours to read
            return
        for each in sorted(inside):
            if not (is_run and each in _INSIDE):
                search(path / each, (*parts, each))

    search(folder, ())
    return found


def _is_run(path: Path) -> bool:
    """Settings and metrics, or a lock where nothing has been measured yet."""
    return _plain(path / CONFIG) and (_plain(path / METRICS) or _plain(path / LOCK))


def _plain(path: Path) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)  # noqa: PTH113, PTH114 - of Path, they raise where we may not look


def _known(folder: Path, name: str) -> Path:
    """The run of this name. The last search is used again for it, so that watching a run does not search each time."""
    with _lock:
        path = _searched.get(folder, {}).get(name)
    if path is None or not _is_run(path):
        found = _found(folder)
        with _lock:
            _searched[folder] = found
        path = found.get(name)
    if path is None or not _here(path, folder):
        raise UnknownRun(f"no run {_text(name)[:200]!r}; GET /runs lists those that are there")
    return path


def _here(path: Path, folder: Path) -> bool:
    """Whether no part of the way to it, below the folder, has become a link in the meantime."""
    return path.resolve() == folder.resolve() / path.relative_to(folder)


def _remembered(path: Path) -> Metrics:
    with _lock:
        metrics = _watched.pop(path, None) or Metrics(path)
        _watched[path] = metrics
        while len(_watched) > KEPT:
            _watched.popitem(last=False)
    return metrics


_lock = threading.Lock()
_searched: dict[Path, dict[str, Path]] = {}
_watched: OrderedDict[Path, Metrics] = OrderedDict()


# How far they are -------------------------------------------------------------------------------------------------------------


def _summary(path: Path) -> dict[str, Any]:
    config, last = _config(path), _last(path / METRICS)
    changed = _changed(path)
    model, data, recipe = (_mapping(config.get(key)) for key in ("model", "data", "recipe"))
    steps = number(recipe.get("steps"))
    return {
        "state": _state(path, changed),
        "updated": changed,
        "model": _name(model.get("name")),
        "data": _name(data.get("name")),
        "verb": _name(config.get("command", config.get("verb"))),  # `verb` in version 1
        "steps": int(steps) if math.isfinite(steps) else None,
        **last,
        "majority": _finite(_kept(path / DONE).get("majority")) if not (path / DONE).parent.is_symlink() else None,
    }


def _state(path: Path, changed: float) -> str:
    """A run that has finished says so. One that is running holds its lock; where locks cannot be seen, its metrics change."""
    if _plain(path / DONE):
        return "finished"
    held = _held(path / LOCK)
    return "running" if held or abs(time.time() - changed) < (QUIET if held is None else SETTLED) else "stopped"


def _held(lock: Path) -> bool | None:
    """Whether another process holds this lock; None where that cannot be told."""
    try:
        with plain_file(lock) as file:
            return is_locked(file)
    except FileNotFoundError:  # it is removed when a run ends
        return False
    except OSError:
        return None


def _changed(path: Path) -> float:
    """When something was last measured; -1 if the run has gone."""
    for name in (METRICS, CONFIG):
        if (written := _written(path / name)) is not None:
            return written
    return -1.0


def _written(path: Path) -> float | None:
    try:
        return round(path.lstat().st_mtime, 3)
    except OSError:
        return None


def _last(path: Path) -> dict[str, Any]:
    """The newest numbers of a run, from the end of its file."""
    try:
        about = path.stat()
        return _last_of(path, about.st_ino, about.st_size, about.st_mtime_ns)
    except OSError:
        return {"step": 0, "seconds": None, "flops": None, "loss": None, "top1": None, "images_per_second": None, "split": None}


@lru_cache(maxsize=4 * LISTED)
def _last_of(path: Path, inode: int, size: int, changed: int) -> dict[str, Any]:
    """By what tells one version of the file from another, so that a run which rests is read once."""
    trained: dict[str, Any] = {}
    evaluated: dict[str, Any] = {}
    with plain_file(path) as file:
        end, rest = size, b""
        while end > 0 and size - end < TAIL and not (trained and evaluated):
            begin = max(0, end - (1 << 16))
            file.seek(begin)
            rest, *lines = (file.read(end - begin) + rest).split(b"\n")
            if begin == 0:
                lines.insert(0, rest)
            for line in reversed(lines):
                record = record_of(line) if len(line) <= LONGEST else None
                if record is None:
                    continue
                if record.get("split") == "train":
                    trained = trained or record
                else:
                    evaluated = evaluated or record
            end = begin
    newest = max(trained, evaluated, key=lambda record: number(record.get("step")) if record else -1.0)
    shown = evaluated if math.isfinite(number(evaluated.get("loss"))) else trained
    return {
        "step": int(newest.get("step", 0)),
        "seconds": _finite(newest.get("seconds")),
        "flops": _finite(newest.get("flops")),
        "loss": _finite(shown.get("loss")),
        "top1": _finite(evaluated.get("top1")),
        "images_per_second": _finite(trained.get("images_per_second")),
        "split": _name(shown.get("split")),
    }


# What is in them --------------------------------------------------------------------------------------------------------------


def _series(metrics: Metrics, after: int) -> list[dict[str, Any]]:
    made = []
    for (key, split), track in metrics.tracks.items():
        steps, values = track.points(after)
        if not len(steps):
            continue
        one = {"key": _text(key), "split": _text(split), "points": _pairs(steps, values)}
        if after < 0 and track.width > 1:
            one["means"] = _pairs(*track.means())
        made.append(one)
    return made


def _pairs(steps: Floats, values: Floats) -> list[list[float | int | None]]:
    return [
        [int(step) if step == int(step) else step, float(f"{value:.6g}") if math.isfinite(value) else None]
        for step, value in zip(steps.tolist(), values.tolist(), strict=True)
    ]


def _config(path: Path) -> dict[str, Any]:
    return _kept(path / CONFIG)


def _kept(path: Path) -> dict[str, Any]:
    """A document that seldom changes, read once."""
    try:
        about = path.stat()
        return dict(_kept_of(path, about.st_ino, about.st_size, about.st_mtime_ns))
    except OSError:
        return {}


@lru_cache(maxsize=4 * LISTED)
def _kept_of(path: Path, inode: int, size: int, changed: int) -> Mapping[str, Any]:
    return _document(path)


def _document(path: Path) -> dict[str, Any]:
    """A JSON object of at most `DOCUMENT` bytes, such as an answer can carry; empty where there is none."""
    try:
        with plain_file(path) as file:
            content = file.read(DOCUMENT + 1)
        found = parse_json(content.decode("utf-8", "replace")) if len(content) <= DOCUMENT else {}
        cleaned = _clean(found)
    except (OSError, ValueError):
        return {}
    return cleaned if isinstance(cleaned, dict) else {}


def _mistakes(path: Path) -> dict[str, Any]:
    """The images that the run got most wrong, if it kept them. Only data are passed on as images, never an address."""
    kept = _document(path)
    if not isinstance(kept.get("mistakes"), list):
        return {}
    shown = []
    for one in kept["mistakes"]:
        one = _mapping(one)
        picture, labels, guesses = one.get("picture"), one.get("labels"), one.get("guesses")
        shown.append(
            {
                "id": _name(one.get("id")),
                "label": " + ".join(str(label) for label in labels) if isinstance(labels, list) else None,
                "guess": _name(one.get("guess")),
                "probability": _finite(one.get("probability")),
                "loss": _finite(one.get("loss")),
                "guesses": guesses if isinstance(guesses, list) else [],
                "picture": picture if isinstance(picture, str) and picture.startswith("data:image/") else None,
            }
        )
    of = {"split": _name(kept.get("split")), "step": _finite(kept.get("step")), "images": _finite(kept.get("images"))}
    return {"mistakes": shown, "of": of}


def _clean(value: Any, level: int = 0) -> Any:
    """What JSON in UTF-8 can carry: no NaN, no half of a surrogate pair, nothing nested without end."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (dict, list)) and level >= _NESTED:
        return "…"
    if isinstance(value, dict):
        return {_text(key): _clean(inner, level + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner, level + 1) for inner in value]
    return value


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode("utf-8")


def _name(value: object) -> str | None:
    return _text(value) if isinstance(value, str) else None


def _finite(value: object) -> float | None:
    found = number(value)
    return found if math.isfinite(found) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
