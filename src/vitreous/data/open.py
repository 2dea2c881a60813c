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

import contextlib
import dataclasses
import os
from pathlib import Path

from vitreous.core.errors import VitreousError, did_you_mean, nearest_names
from vitreous.core.files import did_you_mean_path, user_path
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
        path = user_path(text.removeprefix(PLAIN))
        if not path.is_dir():
            raise VitreousError(f"{text}: no such folder; check the path")
    elif path.is_dir() and (found := _open_original_files(text, path)) is not None:
        return found
    elif text.endswith(TARS) or "://" in text or (path.is_dir() and _holds_shards(path)):
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


def _open_original_files(text: str, folder: Path) -> Dataset | None:
    """A folder that holds a known set's original files is that set: by its name, or by its layout under any name.

    Read as class folders, it would have two or three classes.
    """
    from vitreous.data.datasets import registry as named
    from vitreous.data.datasets.dataset_dir import MissingFiles

    with contextlib.suppress(MissingFiles):
        if named.is_known(text) and named.find_dataset(text).files:
            return named.open_named(text, folder)
    try:
        found = named.recognise(folder)
    except OSError:
        return None  # what reads it next says why it cannot
    if not found:
        return None
    titles = " or ".join(known.title for known in found)
    ways = " or ".join(f"{known.name}@{text}" for known in found)
    plain = f"{PLAIN}{text} reads it as a plain folder of classes"
    if len(found) > 1:
        raise VitreousError(f"{text}: this may be {titles}, by its files; give {ways} ({plain})")
    try:
        opened = named.open_named(found[0].name, folder)
    except VitreousError as error:
        raise VitreousError(f"{error} (by its files {text} is {titles}; {plain})") from error
    return dataclasses.replace(opened, notes=(f"{text}: by its files this is {titles}, read as {ways}; {plain}", *opened.notes))


def _holds_shards(folder: Path) -> bool:
    """Tar files and nothing else that could be data: an archive left lying beside class folders does not count."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    if not any(entry.name.endswith(TARS) for entry in entries):
        return False
    return not any(entry.is_dir() or is_image_name(entry.name) for entry in entries)


def _open_known(text: str) -> Dataset:
    from vitreous.data.datasets import builtin
    from vitreous.data.datasets import registry as named

    whole, _, split = text.rpartition(":")
    if whole and (user_path(whole).exists() or named.is_known(whole)):
        hint = did_you_mean(split, SPLIT_NAMES)
        raise VitreousError(f"{text}: no split is called {split!r}; {hint}splits are train, validation and test")
    name, _, folder = text.partition("@")
    if named.is_known(name):
        return named.open_named(name, user_path(folder) if folder else None)
    if "/" in name or Path(name).suffix or name.startswith((".", "~")):
        raise VitreousError(f"{text}: no such file or folder; {did_you_mean_path(user_path(text))}check the path")
    known = {
        **{each: each for each in named.dataset_names()},
        **{entry.name: f"builtin:{entry.name}" for entry in builtin.BUILTIN},
    }
    hint = "".join(f"did you mean {known[close]!r}? " for close in nearest_names(name, known))
    hint = hint or did_you_mean_path(user_path(text))
    raise VitreousError(f"{text!r}: no such file or folder, and no known data set; {hint}`vitreous list data` shows them")
