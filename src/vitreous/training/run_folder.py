"""A run on disk: `config.json  metrics.jsonl  log.txt  report.html  mistakes.json  outcomes.csv  checkpoint/  state/`.

A folder belongs to one config. Starting again with the same one resumes; with another it is refused and the difference
shown; of a finished run nothing is changed. Only the first process writes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.core.distributed import World, broadcast_or_raise
from vitreous.core.errors import VitreousError, first_few, one_line
from vitreous.core.fields import field_types
from vitreous.core.files import did_you_mean_path, locked, write_text
from vitreous.core.printable import printable
from vitreous.core.untrusted_json import parse_json, read_json, without_nan
from vitreous.models.config import config_from_json, config_to_json
from vitreous.training.callbacks import Callback
from vitreous.training.config import VERSION, RunRecord

FEWSHOT = "fewshot"  # the split of a line of metrics.jsonl that has few-shot accuracies and no loss
CONFIG, METRICS, LOG = "config.json", "metrics.jsonl", "log.txt"
DONE, LOCK = "state/done.json", "state/.lock"

# What may differ between two starts of one run, because it changes nothing of the result. (The data and the checkpoint that it
# begins from are known by their fingerprints, however their paths are spelt.)
FREE = (
    "workers", "save_every", "keep_every", "track", "decisions", "versions", "world_size", "threads", "options", "extended",
    "data.name", "from.source", "teacher.source", "arguments",  # the last: of a suite of tasks
)  # fmt: skip


class Difference(NamedTuple):
    """A setting that is not as it was: `recipe.lr: 0.01 there, 0.03 now`."""

    name: str
    was: Any
    now: Any

    def __str__(self) -> str:
        was, now = (one_line(json.dumps(value), 60) for value in (self.was, self.now))
        return f"{self.name}: {was} there, {now} now"


_LENGTH = ("recipe.steps", "recipe.epochs")
_FOLLOWING = ("recipe.warmup", "eval_every")  # from the length, unless somebody sets them


class RunFolder(Callback):
    def __init__(self, path: Path, world: World) -> None:
        self.path, self.world = path, world
        self._lock = contextlib.ExitStack()

    def claim(self, config: Mapping[str, Any], extend: bool) -> bool:
        """Make the folder this run's, or refuse; whether the run is finished already. All processes get the same answer."""
        return bool(broadcast_or_raise(self.world, lambda: self._claim(config, extend)))

    def check(self, config: Mapping[str, Any], extend: bool, undecided: Collection[str]) -> None:
        """Refuse now what `claim` would refuse later, when the settings that are `undecided` are known. Nothing is written."""
        broadcast_or_raise(self.world, lambda: self._check(config, extend, undecided))

    def _claim(self, config: Mapping[str, Any], extend: bool) -> bool:
        old = self._check(config, extend)
        if old is not None and (self.path / DONE).exists() and not _longer(old, config):
            return True
        self.lock()
        self.tidy()
        old = self._check(config, extend)  # once more: another start may have been faster to the lock, and have ended
        if old is None or _longer(old, config):
            (self.path / DONE).unlink(missing_ok=True)  # first: killed in between, the shorter run is finished once more
            write_text(self.path / CONFIG, json.dumps(config, indent=1, ensure_ascii=False) + "\n")
        return (self.path / DONE).exists()

    def _check(self, config: Mapping[str, Any], extend: bool, undecided: Collection[str] = ()) -> dict[str, Any] | None:
        """The config that lies here, if this run may be resumed from it; otherwise it is refused."""
        if self.path.exists() and not self.path.is_dir():
            raise VitreousError(f"--out {self.path}: is a file; a run needs a folder")
        record = recorded_config(self.path)
        if record is None:
            if self.path.exists() and not all(map(_ours, self.path.iterdir())):
                raise VitreousError(f"--out {self.path}: is not empty, and not a run of this program; choose another folder")
            return None
        old = record.settings
        with contextlib.suppress(VitreousError):  # a field that is younger than the run has its default there
            old = {**old, "model": config_to_json(config_from_json(old["model"]))}
        # A run that met a bad image and stopped may be resumed without it: until then it had left nothing out.
        harmless = ("bad_images", "stop", "skip")
        differences = [found for found in difference(old, config) if found.name not in undecided and found != harmless]
        length = [found for found in differences if found.name in _LENGTH]
        listed = first_few([str(found) for found in differences], 6)
        lengthens = length and not extend and all(found.name in _LENGTH + _FOLLOWING for found in differences)
        if len(length) < len(differences) and not lengthens:
            raise VitreousError(
                f"--out {self.path}: belongs to a run with other settings ({listed}); start that one again as it was, or "
                f"choose another --out"
            )
        if length and not extend:
            raise VitreousError(
                f"--out {self.path}: this run has another length ({'; '.join(map(str, length))}); --extend makes it longer, or "
                f"choose another --out"
            )
        if length and config["recipe"]["steps"] < old["recipe"]["steps"]:
            raise VitreousError(f"--out {self.path}: --extend only makes a run longer ({listed})")
        return old

    def lock(self) -> None:
        """A run that is under way is not started a second time."""
        if not self.world.is_main:
            return
        refusal = f"--out {self.path}: another process is training this run; wait for it, or end it"
        self._lock.enter_context(locked(self.path / LOCK, refusal))

    def tidy(self) -> None:
        """Remove what killed processes left half written. For the lock's owner."""
        for folder in ("", "state", "checkpoint", "checkpoint/best", "checkpoint/raw"):
            for part in (self.path / folder).glob(".*.part"):
                shutil.rmtree(part) if part.is_dir() else part.unlink()

    def release(self) -> None:
        self._lock.close()

    # Metrics -----------------------------------------------------------------------------------------------------------

    def history(self) -> list[dict[str, Any]]:
        """All records that can be read: a killed process may have left half a line at the end."""
        path = self.path / METRICS
        records = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                records.append(parse_json(line))
        return [record for record in records if isinstance(record, dict)]

    def cut(self, step: int, evaluated: bool = True) -> None:
        """Forget what was measured after this step, and unless `evaluated` its own evaluation too: it is measured again."""

        def stays(record: Mapping[str, Any]) -> bool:
            at = record.get("step")
            return isinstance(at, int) and (at < step or (at == step and (evaluated or record.get("split") == "train")))

        if self.world.is_main and (self.path / METRICS).exists():
            kept = [record for record in self.history() if stays(record)]
            write_text(self.path / METRICS, "".join(json.dumps(record) + "\n" for record in kept))

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        self._append(METRICS, json.dumps(without_nan(dict(record))) + "\n")

    def on_message(self, line: str) -> None:
        self._append(LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(line)}\n")

    def _append(self, name: str, text: str) -> None:
        if not self.world.is_main:
            return
        try:
            with (self.path / name).open("a", encoding="utf-8", errors="replace") as file:
                file.write(text)
        except OSError as error:
            raise VitreousError(
                f"{self.path / name}: cannot write ({error.strerror or error}); free some space and start the same command "
                f"again: the last state is intact"
            ) from error

    def finish(self, result: Mapping[str, Any]) -> None:
        if self.world.is_main:
            write_text(self.path / DONE, json.dumps(result, indent=1) + "\n")

    def result(self) -> dict[str, Any]:
        try:
            return dict(read_json(self.path / DONE))
        except (OSError, ValueError, TypeError) as error:
            raise VitreousError(
                f"{self.path / DONE}: cannot be read ({one_line(error)}); remove it to finish the run again"
            ) from error


def read_config(path: Path, remedy: str = "restore it, or choose another --out") -> RunRecord:
    """The record of a run, of this version; of an older one, one line says what to do."""
    try:
        found = read_json(path)
    except FileNotFoundError as error:
        raise VitreousError(f"{path}: no such file; {did_you_mean_path(path)}{remedy}") from error
    except (OSError, ValueError) as error:
        raise VitreousError(f"{path}: cannot be read as a run's config ({one_line(error)}); {remedy}") from error
    version = found.get("version", 1 if "verb" in found else None) if isinstance(found, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise VitreousError(
            f"{path}: is a config of version {version}, and this program reads version {VERSION}; finish the run with the "
            f"program that began it, or choose another --out"
        )
    try:
        return RunRecord(settings=found, **{name: found[name] for name in field_types(RunRecord) if name != "settings"})
    except (KeyError, TypeError, VitreousError) as error:
        raise VitreousError(f"{path}: is not a config of this program ({one_line(error)}); {remedy}") from error


def recorded_config(out: Path) -> RunRecord | None:
    """The record of the run that lies in `out`, if there is one."""
    return read_config(out / CONFIG) if (out / CONFIG).exists() else None


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[Difference]:
    """What differs, but for what is free to."""
    old, new = json.loads(json.dumps([old, new]))  # tuples are lists in files
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        name = f"{prefix}{key}"
        if name in FREE:
            continue
        was, now = old.get(key), new.get(key)
        if isinstance(was, dict) and isinstance(now, dict):
            found += difference(was, now, f"{name}.")
        elif was != now:
            found.append(Difference(name, was, now))
    return found


def _longer(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return any(found.name in _LENGTH for found in difference(old, new))


def _ours(entry: Path) -> bool:
    """What may lie in a folder before its run: a sweep, and what a start left that was killed at once."""
    if entry.name == "state":
        return not any(entry.glob("step-*"))
    return entry.name == "sweep" or (entry.name.startswith(".") and entry.name.endswith(".part"))
