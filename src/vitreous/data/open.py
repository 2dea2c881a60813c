"""Open the data set that DATA on the command line names.

    photos/                   a folder (see `folder`), or one with shards in it; with a known set's original files, that set
    folder:photos/            a folder, whatever lies in it
    list.csv  list.jsonl      a manifest (see `manifest`)
    train-{000..127}.tar      shards, here or at s3://, gs://, https:// (see `shards.reader`)
    builtin:digits            built in (see `builtin`)
    cifar10  cifar10@DIR      a known set in its original files, in DIR, in a folder of that name, or fetched (see `registry`)
    hf:OWNER/NAME             Hugging Face datasets (see `hub`)
    vtab:TASK@DIR             a task of VTAB-1k (see `vtab`)

With a split's name behind it, that split alone: `cifar10:test`, `photos/:validation` (not with `hf:`).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from vitreous.core.errors import VitreousError, nearest_names
from vitreous.core.files import user_path
from vitreous.data.conventions import SPLIT_NAMES, TARS
from vitreous.data.source import Dataset, Policy
from vitreous.data.transforms.image_formats import is_image_name

PLAIN = "folder:"


def open_data(data: str | Path, bad_shards: Policy = "stop") -> Dataset:
    """`bad_shards` says what to do about a shard that is broken; other data has none."""
    text = str(data)
    whole, _, split = text.rpartition(":")
    if whole not in ("", "folder") and split in SPLIT_NAMES and not text.startswith("hf:") and not user_path(text).exists():
        return open_data(whole, bad_shards).only(SPLIT_NAMES[split])
    path = user_path(text)
    if text.startswith("builtin:"):
        from vitreous.data.datasets.builtin import open_builtin

        return open_builtin(text.removeprefix("builtin:"))
    if text.startswith("hf:"):
        from vitreous.data.sources.hub import open_hub

        return open_hub(text)
    if text.startswith("vtab:"):
        from vitreous.data.datasets.vtab import open_vtab

        return open_vtab(text, bad_shards)
    if text.startswith(PLAIN):
        return _open_plain_folder(text, user_path(text.removeprefix(PLAIN)))
    if path.is_dir() and (found := _open_originals(text, path) or _open_recognised(text, path)) is not None:
        return found
    if text.endswith(TARS) or "://" in text or (path.is_dir() and _holds_shards(path)):
        from vitreous.data.shards.reader import open_shards

        return open_shards(text, bad_shards=bad_shards)
    if path.is_dir():
        from vitreous.data.sources.folder import open_folder

        return open_folder(path)
    if path.is_file():
        from vitreous.data.sources.manifest import ENDINGS, open_manifest

        if path.suffix.lower() in ENDINGS:
            return open_manifest(path)
        raise VitreousError(f"{text}: neither a folder nor a manifest ({', '.join(ENDINGS)}) nor a shard (.tar)")
    return _open_known(text)


def _open_originals(text: str, folder: Path) -> Dataset | None:
    """A folder that bears a known set's name and holds its original files is that set, and no folder of images or shards."""
    from vitreous.data.datasets import registry as named
    from vitreous.data.datasets.dataset_dir import MissingFiles

    if not (named.is_known(text) and named.find_dataset(text).files):
        return None
    try:
        return named.open_named(text, folder)
    except MissingFiles:
        return None


def _open_plain_folder(text: str, path: Path) -> Dataset:
    from vitreous.data.sources.folder import open_folder

    if not path.is_dir():
        raise VitreousError(f"{text}: no such folder; check the path")
    return open_folder(path)


def _open_recognised(text: str, folder: Path) -> Dataset | None:
    """A folder in a known set's original layout, under any name: read as class folders, it would have two or three classes."""
    from vitreous.data.datasets import registry as named

    try:
        found = named.recognise(folder)
    except OSError:
        return None  # what reads it next says why it cannot
    if not found:
        return None
    ways = " or ".join(f"{known.name}@{text}" for known in found)
    plain = f"{PLAIN}{text} reads it as a plain folder of classes"
    if len(found) > 1:
        titles = " or ".join(known.title for known in found)
        raise VitreousError(f"{text}: this may be {titles}, by its files; give {ways} ({plain})")
    try:
        opened = named.open_named(found[0].name, folder)
    except VitreousError as error:
        raise VitreousError(f"{error} (by its files {text} is {found[0].title}; {plain})") from error
    note = f"{text}: by its files this is {found[0].title}, read as {ways}; {plain}"
    return dataclasses.replace(opened, notes=(note, *opened.notes))


def _holds_shards(folder: Path) -> bool:
    """Tar files and nothing else that could be data: an archive left lying beside class folders does not count."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    if not any(entry.name.endswith(TARS) for entry in entries):
        return False
    return not any(entry.is_dir() or is_image_name(entry.name) for entry in entries)


def _open_known(text: str) -> Dataset:
    from vitreous.data.datasets import builtin
    from vitreous.data.datasets import registry as named

    name, _, folder = text.partition("@")
    if named.is_known(name):
        return named.open_named(name, user_path(folder) if folder else None)
    if "/" in name or Path(name).suffix or name.startswith((".", "~")):
        raise VitreousError(f"{text}: no such file or folder; check the path")
    known = {
        **{each: each for each in named.dataset_names()},
        **{entry.name: f"builtin:{entry.name}" for entry in builtin.BUILTIN},
    }
    hint = "".join(f"did you mean {known[close]!r}? " for close in nearest_names(name, known))
    raise VitreousError(f"{text!r}: no such file or folder, and no known data set; {hint}`vitreous list data` shows them")
