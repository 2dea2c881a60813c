"""Check where results may be written, before the long work begins."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path
from vitreous.core.untrusted_json import read_record


def check_outside(out: Path, data: Path | None, option: str = "--out") -> None:
    """Results inside the data would be taken for data by the next command."""
    if data is not None and out.resolve().is_relative_to(data.resolve()):
        raise VitreousError(f"{option} {out}: lies inside the data; choose a folder elsewhere")


def check_result_folder(
    out: Path, record: str, made_by: str, files: Collection[str], data: Path | None = None
) -> Mapping[str, Any]:
    """The folder is new, empty or an earlier result, and not a part of the data. Gives the earlier one's record, if any.

    `record` is the JSON file that says who made the folder; `files` are all that belong there.
    """
    before = read_record(out / record)
    check_replaceable("--out", out, files, before.get("made_by") == made_by, data)
    return before


def check_replaceable(option: str, out: Path, files: Collection[str], ours: bool, data: Path | None = None) -> None:
    """The folder is new, empty or `ours` with nothing but `files`, so that no other file is lost when it is replaced."""
    check_outside(out, data, option)
    try:
        inside = {entry.name for entry in os.scandir(out)} if out.exists() else set()
    except OSError as error:
        raise VitreousError(f"{option} {out}: must be a folder ({error.strerror}); choose another name") from error
    if inside and (not ours or inside - set(files)):
        others = sorted(inside - set(files)) or sorted(inside)
        raise VitreousError(f"{option} {out}: holds other files ({others[0]!a}), which would be lost; choose a new folder")
    check_writable(option, out)


def check_writable(option: str, path: Path) -> None:
    """Whether a file or folder of this name can be made: the folder above it is there, or can be, and lets one write."""
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        raise VitreousError(f"{option} {path}: {above} is not a folder, so nothing can be written in it; choose another place")
    if not os.access(above, os.W_OK | os.X_OK):
        raise VitreousError(f"{option} {path}: {above} may not be written to; choose another place")


def find_data_folder(data: str) -> Path | None:
    """The folder that DATA names, as DIR, folder:DIR or NAME@DIR, or one of whose splits it names."""
    data = data.removeprefix("folder:")
    whole = data.rpartition(":")[0]
    for text in (data, whole, data.partition("@")[2], whole.partition("@")[2]):
        if text and (path := user_path(text)).is_dir():
            return path
    return None
