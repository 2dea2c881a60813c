"""A file of rows that an interrupted command resumes: complete rows only, none twice and none lost.

Beside `rows.jsonl` lies `rows.jsonl.about.json`, which records what the rows depend on: weights, images and options. A
command that differs is refused, with the difference. On resuming, the rows are compared with the list of images one by one,
a truncated last row is removed, and the work continues after the last complete row.

With several ranks each writes a part, `rows.jsonl.part-0-of-2`, every second row; the main rank merges them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from vitreous.core.errors import VitreousError, first_few, one_line
from vitreous.core.files import atomic_file, beside, flush_to_disk, locked, write_text
from vitreous.core.untrusted_json import read_json
from vitreous.inference.image_list import NamedImage
from vitreous.inference.rows import Format, Row, Writing, read_rows, whole_lines

_DONE, _ROWS, _BYTES, _ERRORS = "done", "rows", "bytes", "errors"
_STATE = (_DONE, _ROWS, _BYTES, _ERRORS)
_FREE = (*_STATE, "checkpoint")  # may differ: equal weights in another place are the same
_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".csv": "csv"}


def format_of(out: Path) -> Format:
    if out.suffix.lower() not in _FORMATS:
        raise VitreousError(f"--out {out}: its ending says how rows are written, so it must be .jsonl or .csv")
    return _FORMATS[out.suffix.lower()]


def about_path(path: Path) -> Path:
    return beside(path, ".about.json")


def part_path(out: Path, process: int, processes: int) -> Path:
    return out if processes == 1 else beside(out, f".part-{process}-of-{processes}")


class RowFile:
    """One rank's file of rows. Used as a context manager: what it leaves is a file of complete rows."""

    _file: IO[bytes]

    def __init__(self, path: Path, way: Writing, about: Mapping[str, Any]) -> None:
        self.path, self.way, self.about = path, way, dict(about)
        self._size, self._open = 0, contextlib.ExitStack()
        recorded = self._claimed()
        self.done = bool(recorded.get(_DONE))
        self.rows, self.errors = (int(recorded[key]) if self.done else 0 for key in (_ROWS, _ERRORS))

    def _claimed(self) -> dict[str, Any]:
        """What the file is known to be; empty for a new one."""
        about = about_path(self.path)
        if self.path.is_dir():
            raise VitreousError(f"--out {self.path}: is a folder; name a file in it, as {self.path / 'rows.jsonl'}")
        if not self.path.exists() or not (about.exists() or self.path.stat().st_size):
            return {}
        if not about.exists():
            raise VitreousError(
                f"--out {self.path}: is there already, and {about.name} is not beside it, which would say what its rows are "
                f"of; choose another --out, or remove it"
            )
        recorded = read_about(about)
        refuse_difference(self.path, recorded, self.about)
        if recorded.get(_DONE) and self.path.stat().st_size != recorded.get(_BYTES):
            raise VitreousError(f"--out {self.path}: was changed since it was finished; choose another --out, or remove it")
        return recorded

    def __enter__(self) -> RowFile:
        refusal = f"--out {self.path}: another process is writing to it just now; wait for it, or end it"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(beside(self.path, ".lock"), refusal))
                if not self._claimed():  # once more: another command may have begun at the same time
                    write_text(about_path(self.path), _text({**self.about, _DONE: False}))
                self._file = stack.enter_context(self.path.open("ab", buffering=0))
                self._size = self.path.stat().st_size
            except OSError as error:
                raise VitreousError(
                    f"--out {self.path}: cannot write ({error.strerror or error}); choose another place"
                ) from error
            self._open = stack.pop_all()
        return self

    def resume(self, images: Iterator[NamedImage]) -> None:
        """Skip the images whose rows are there; each must be the image of its row."""
        size = next((end for end, _ in whole_lines(self.path, quotes=True)), 0) if self.way.head else 0
        for number, (end, row) in enumerate(read_rows(self.path, self.way), start=1):
            image = next(images, None)
            if image is None or self.way.named(image.path) != row.path:
                now = "there is none now" if image is None else f"it is {image.path!r} now"
                raise VitreousError(
                    f"--out {self.path}: row {number:,} is of {row.path!r}, and {now}; the images have changed since it was "
                    f"begun, so choose another --out"
                )
            self.rows, size = number, end
            self.errors += row.error is not None
        self._file.truncate(size)  # a truncated row
        self._size = size
        if not size and self.way.head:
            self._append(self.way.head)

    def write(self, rows: Sequence[Row]) -> None:
        try:
            self._append("".join(map(self.way.line, rows)))
        except OSError as error:
            raise VitreousError(
                f"--out {self.path}: cannot write ({error.strerror or error}); free some space and start the same command "
                f"again: it resumes after the rows that are there"
            ) from error
        self.rows += len(rows)
        self.errors += sum(row.error is not None for row in rows)

    def _append(self, text: str) -> None:
        left = text.encode()
        size = self._size + len(left)
        while left:
            left = left[self._file.write(left) :]
        self._size = size

    def finish(self) -> None:
        os.fsync(self._file.fileno())
        write_done(self.path, self.about, self.rows, self.errors)
        self.done = True

    def __exit__(self, *error: object) -> None:
        with self._open, contextlib.suppress(OSError):
            self._file.truncate(self._size)  # a signal may have come in the middle of a row


def write_done(path: Path, about: Mapping[str, Any], rows: int, errors: int) -> None:
    state = {_DONE: True, _ROWS: rows, _ERRORS: errors, _BYTES: path.stat().st_size}
    write_text(about_path(path), _text({**about, **state}))


def _text(about: Mapping[str, Any]) -> str:
    return json.dumps(about, indent=1) + "\n"


def read_about(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
        if not isinstance(found, dict) or (found.get(_DONE) and not all(isinstance(found.get(key), int) for key in _STATE)):
            raise ValueError("it does not say what it should")
    except (OSError, ValueError) as error:
        raise VitreousError(f"{path}: cannot be read ({one_line(error)}); choose another --out") from error
    return found


def refuse_difference(path: Path, recorded: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(about))
    different = [
        f"{key}: {one_line(json.dumps(recorded.get(key)), 60)} there, {one_line(json.dumps(now.get(key)), 60)} now"
        for key in [*now, *(key for key in recorded if key not in now)]
        if key not in _FREE and recorded.get(key) != now.get(key)
    ]
    if different:
        raise VitreousError(
            f"--out {path}: belongs to another command ({first_few(different, 4)}); start that one again as it was, "
            f"or choose another --out"
        )


# Several processes -------------------------------------------------------------------------------------------------------


def claim(out: Path, way: Writing, about: Mapping[str, Any], process: int, processes: int) -> RowFile:
    """The file that this process writes: `out` itself, or its part of it. A finished `out` is not written again."""
    _refuse_other_parts(out, processes)
    if processes == 1:
        return RowFile(out, way, about)
    own = part_path(out, process, processes)
    if out.exists() and (about_path(out).exists() or not own.exists()):  # else killed while the parts were put together
        whole = RowFile(out, way, about)
        if whole.done:
            return whole
        raise VitreousError(f"--out {out}: was begun by one process; resume with one, or choose another --out")
    return RowFile(own, way, about)


def _refuse_other_parts(out: Path, processes: int) -> None:
    """Parts belong to a number of processes; with another number they would not fit together."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in out.parent.iterdir():
            match = re.fullmatch(re.escape(out.name) + r"\.part-\d+-of-(\d+)", path.name)
            if match and int(match[1]) != processes:
                raise VitreousError(
                    f"--out {out}: was begun with {match[1]} processes and now there "
                    f"{'is 1' if processes == 1 else f'are {processes}'}; resume with {match[1]}, or remove {out.name}.part-*"
                )


def merge(out: Path, way: Writing, about: Mapping[str, Any], processes: int) -> tuple[int, int]:
    """The parts of all processes, a row of each in turn, as one file; returns how many rows and how many errors it has."""
    parts = [part_path(out, process, processes) for process in range(processes)]
    for part in parts:
        if not part.exists():
            raise VitreousError(f"{part}: is not here; all machines must write to one shared folder")
    recorded = [read_about(about_path(part)) for part in parts]
    with atomic_file(out) as new, new.open("w", encoding="utf-8", newline="") as file:
        file.write(way.head)
        columns = [(line for _, line in whole_lines(part, quotes=bool(way.head))) for part in parts]
        for lines in columns if way.head else ():
            next(lines, None)
        for row in itertools.zip_longest(*columns):
            file.writelines(line for line in row if line is not None)
    rows, errors = (sum(int(entry.get(key, 0)) for entry in recorded) for key in (_ROWS, _ERRORS))
    write_done(out, about, rows, errors)
    flush_to_disk(out.parent)
    forget_parts(out, processes)
    return rows, errors


def forget_parts(out: Path, processes: int) -> None:
    for process in range(processes):
        part = part_path(out, process, processes)
        if part != out:
            part.unlink(missing_ok=True)
            about_path(part).unlink(missing_ok=True)
