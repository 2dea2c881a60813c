"""Runs in a folder, for a page that watches them: the list, the progress and the growing curves of each.

Everything here was written by another process, perhaps just now, and is untrusted. A line may be half written, a number may
be none, a folder may go away between two looks; nothing of it is an error of the one who watches. A run is named by its path
below the folder, and a name is looked up among those that were found: it is never made into a path.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from vitreous.core.errors import VitreousError
from vitreous.core.files import is_locked
from vitreous.core.printable import printable
from vitreous.core.untrusted_json import parse_json, without_nan
from vitreous.reports.series import Floats, number
from vitreous.serving.run_metrics import MetricsReader, plain_file, record_of
from vitreous.training.mistakes import MISTAKES
from vitreous.training.run_folder import CONFIG, DONE, FEWSHOT, LOCK, METRICS

T = TypeVar("T")

DEEP = 3  # folders below the one that is watched
LISTED = 200  # runs, the newest
ENTRIES = 50_000  # looked at in a search; a data set may lie beside the runs
KEPT = 24  # runs whose curves are remembered
DOCUMENT = 8 << 20  # bytes of a config or of the mistakes
TAIL = 1 << 18  # bytes at a file's end that are searched for its last evaluation
QUIET = 300.0  # seconds without a record after which a run counts as stopped, where nothing else tells
SETTLED = 30.0  # the same, where nobody holds its lock: copies of a run that continues elsewhere grow without one

INSIDE = ("checkpoint", "state")  # of a run: nothing to search


class UnknownRun(VitreousError):
    """No run has this name, or it has gone away."""


class RunsFolder:
    """The runs below a folder. Several threads may ask at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._readers: OrderedDict[Path, MetricsReader] = OrderedDict()

    def listing(self) -> dict[str, Any]:
        """The newest runs first; `left_out` counts older ones beyond `LISTED`, whose names can still be asked for."""
        found = self._search()
        dated = sorted((-_changed(path), name) for name, path in found.items())
        # One that has gone away since the search has no date.
        runs = [{"name": name, **_summarise(found[name])} for date, name in dated[:LISTED] if date <= 0]
        return {"runs": runs, "left_out": max(0, len(dated) - LISTED)}

    def view(self, name: str, after: int = -1) -> dict[str, Any]:
        """A run's curves, its settings and its worst mistakes.

        With `after`, only the points of later steps: then `config`, `result` and `mistakes`, which were sent before, are
        empty. A `generation` other than before means that the run has forgotten what it had measured, and that all must be
        requested again; another `mistakes_at`, that an evaluation has found other mistakes; `complete` is false where the
        file is so long that the next response has more of it.
        """
        path = self._known(name)
        reader = self._reader(path / METRICS)
        with reader.lock:
            try:
                reader.read_appended()
            except FileNotFoundError:  # a run that has just begun has measured nothing
                if not (path / CONFIG).exists():
                    raise _unknown(name) from None
            except OSError as error:
                raise UnknownRun(f"run {name!r}: its {METRICS} cannot be read ({error.strerror or error})") from error
            curves = {
                "series": _series(reader, after),
                "generation": reader.generation,
                "complete": not reader.unread,
                "skipped": reader.skipped,
                "values_left_out": reader.left_out,
            }
        everything = after < 0
        mistakes = _mistakes(path / MISTAKES) if everything else None
        return {
            "name": name,
            **_summarise(path),
            **curves,
            "config": _cached(_document, path / CONFIG) if everything else {},
            "result": _result(path) if everything else {},
            "mistakes": mistakes["mistakes"] if mistakes else [],
            "mistakes_of": mistakes["of"] if mistakes else None,
            "mistakes_at": _written(path / MISTAKES),
        }

    def _search(self) -> dict[str, Path]:
        """Runs by name. Hidden folders and links are not entered: a link may lead out of the folder, or in a circle."""
        found: dict[str, Path] = {}
        folders: list[tuple[Path, tuple[str, ...]]] = [(self.path, ())]
        left = ENTRIES
        while folders:
            path, parts = folders.pop()
            if is_run := _is_run(path):
                name = printable("/".join(parts or (path.resolve().name,)))
                while name in found:
                    name += "~"
                found[name] = path
            if len(parts) == DEEP:
                continue
            with suppress(OSError), os.scandir(path) as scanned:  # it may be gone, or not ours to read
                entries = list(itertools.islice(scanned, left))
                left -= len(entries)
                inside = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
                entered = sorted(set(inside) - set(INSIDE if is_run else ()), reverse=True)
                folders += [(path / each, (*parts, each)) for each in entered]
        with self._lock:
            self._found = found
        return found

    def _known(self, name: str) -> Path:
        """The run of this name. The last search is used again for it, so that watching a run does not search each time."""
        path = self._found.get(name)
        if path is None or not _is_run(path):
            path = self._search().get(name)
        # Some part of the way to it may have become a link in the meantime.
        if path is None or path.resolve() != self.path.resolve() / path.relative_to(self.path):
            raise _unknown(name)
        return path

    def _reader(self, path: Path) -> MetricsReader:
        with self._lock:
            reader = self._readers.pop(path, None) or MetricsReader(path)
            self._readers[path] = reader
            while len(self._readers) > KEPT:
                self._readers.popitem(last=False)
        return reader


def _unknown(name: str) -> UnknownRun:
    return UnknownRun(f"no run {name[:200]!r}; GET /runs lists those that are there")


def _is_run(path: Path) -> bool:
    """Settings and metrics, or a lock where nothing has been measured yet."""
    return _is_plain(path / CONFIG) and (_is_plain(path / METRICS) or _is_plain(path / LOCK))


def _is_plain(path: Path) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)  # noqa: PTH113, PTH114 - of Path, they raise where we may not look


# Progress ---------------------------------------------------------------------------------------------------------------------


def _summarise(path: Path) -> dict[str, Any]:
    config = _cached(_document, path / CONFIG)
    trained, evaluated = _cached(_last_records, path / METRICS)
    model, data, recipe = (_mapping(config.get(key)) for key in ("model", "data", "recipe"))
    newest = max(trained, evaluated, key=lambda record: number(record.get("step")) if record else -1.0)
    shown = evaluated if _finite(evaluated.get("loss")) is not None else trained
    steps = _finite(recipe.get("steps"))
    return {
        "state": _state(path),
        "updated": _changed(path),
        "model": _text(model.get("name")),
        "data": _text(data.get("name")),
        "verb": _text(config.get("command", config.get("verb"))),  # `verb` in version 1
        "steps": None if steps is None else int(steps),
        "step": int(newest.get("step", 0)),
        "seconds": _finite(newest.get("seconds")),
        "flops": _finite(newest.get("flops")),
        "loss": _finite(shown.get("loss")),
        "top1": _finite(evaluated.get("top1")),
        "images_per_second": _finite(trained.get("images_per_second")),
        "split": _text(shown.get("split")),
        "majority": _finite(_result(path).get("majority")),
    }


def _state(path: Path) -> str:
    """A run that has finished says so. One that is running holds its lock; where locks cannot be seen, its metrics change."""
    if _is_plain(path / DONE):
        return "finished"
    held: bool | None = None
    try:
        with plain_file(path / LOCK) as lock:
            held = is_locked(lock)
    except FileNotFoundError:  # it is removed when a run ends
        held = False
    except OSError:
        pass
    return "running" if held or abs(time.time() - _changed(path)) < (QUIET if held is None else SETTLED) else "stopped"


def _changed(path: Path) -> float:
    """When something was last measured; -1 if the run has gone."""
    dates = (_written(path / METRICS), _written(path / CONFIG))
    return next((date for date in dates if date is not None), -1.0)


def _written(path: Path) -> float | None:
    try:
        return round(path.lstat().st_mtime, 3)
    except OSError:
        return None


def _last_records(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The newest record of training and that of an evaluation, from the end of the file; empty where there is none."""
    last: dict[bool, dict[str, Any]] = {}
    with suppress(OSError), plain_file(path) as file:
        begin = max(0, file.seek(0, os.SEEK_END) - TAIL)
        file.seek(begin)
        # The first line may be the rest of one.
        lines = file.read(TAIL).split(b"\n")[bool(begin) :]
        for record in filter(None, map(record_of, reversed(lines))):
            if record.get("split") != FEWSHOT:
                last.setdefault(record.get("split") == "train", record)
            if len(last) == 2:
                break
    return last.get(True, {}), last.get(False, {})


# Contents ---------------------------------------------------------------------------------------------------------------------


def _series(reader: MetricsReader, after: int) -> list[dict[str, Any]]:
    made = []
    for (key, split), track in reader.tracks.items():
        steps, values = track.points(after)
        if len(steps):
            made.append({"key": key, "split": split, "points": _pairs(steps, values)})
            if after < 0 and track.width > 1:
                made[-1]["means"] = _pairs(*track.means())
    return made


def _pairs(steps: Floats, values: Floats) -> list[list[float | int | None]]:
    return [
        [int(step) if step == int(step) else step, float(f"{value:.6g}") if math.isfinite(value) else None]
        for step, value in zip(steps.tolist(), values.tolist(), strict=True)
    ]


def _cached(read: Callable[[Path], T], path: Path) -> T:
    """What `read` gives for a file. Each version of it is read once, however often a page asks."""
    try:
        about = path.stat()
    except OSError:
        return read(path)
    found: T = _read_version(read, path, about.st_ino, about.st_size, about.st_mtime_ns)
    return found


@lru_cache(maxsize=8 * LISTED)
def _read_version(read: Callable[[Path], Any], path: Path, *version: int) -> Any:
    return read(path)


def _result(path: Path) -> Mapping[str, Any]:
    """Of a run that has finished; its folder may be a link that leads elsewhere."""
    return {} if (path / DONE).parent.is_symlink() else _cached(_document, path / DONE)


def _document(path: Path) -> Mapping[str, Any]:
    """A JSON object of at most `DOCUMENT` bytes; empty where there is none."""
    try:
        with plain_file(path) as file:
            content = file.read(DOCUMENT + 1)
        return _mapping(without_nan(parse_json(content.decode("utf-8", "replace"), most=DOCUMENT)))
    except (OSError, ValueError):
        return {}


def _mistakes(path: Path) -> dict[str, Any] | None:
    """The images that the run got most wrong, if it kept them. Only data are passed on as images, never an address."""
    document = _document(path)
    if not isinstance(document.get("mistakes"), list):
        return None
    shown = []
    for one in map(_mapping, document["mistakes"]):
        labels, guesses, image = one.get("labels"), one.get("guesses"), _text(one.get("picture")) or ""
        shown.append(
            {
                "id": _text(one.get("id")),
                "label": " + ".join(map(str, labels)) if isinstance(labels, list) else None,
                "guess": _text(one.get("guess")),
                "probability": _finite(one.get("probability")),
                "loss": _finite(one.get("loss")),
                "guesses": guesses if isinstance(guesses, list) else [],
                "picture": image if image.startswith("data:image/") else None,
            }
        )
    of = {"split": _text(document.get("split")), **{key: _finite(document.get(key)) for key in ("step", "images")}}
    return {"mistakes": shown, "of": of}


def _text(value: object) -> str | None:
    """Without halves of surrogate pairs, such as names of files may hold."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else None


def _finite(value: object) -> float | None:
    found = number(value)
    return found if math.isfinite(found) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
