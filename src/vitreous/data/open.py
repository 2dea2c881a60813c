"""From what a person types for DATA to a data set.

    photos/                   a folder (see `folder`), or one with shards in it
    list.csv  list.jsonl      a manifest (see `manifest`)
    train-{000..127}.tar      shards, here or at s3://, gs://, https:// (see `shards`)
    builtin:digits            built in (see `builtin`)
    cifar10  cifar10@DIR      a known set in its original files, in DIR, in a folder of that name, or fetched (see `named`)
    hf:OWNER/NAME             Hugging Face datasets (see `hub`)
    vtab:TASK@DIR             a task of VTAB-1k (see `vtab`)

With a split's name behind it, that split alone: `cifar10:test`, `photos/:validation` (not with `hf:`).
"""

from __future__ import annotations

import os
from pathlib import Path

from vitreous.data.image_formats import is_image_name
from vitreous.data.naming import SPLIT_NAMES, TARS
from vitreous.data.source import Dataset, Policy
from vitreous.errors import VitreousError, nearest


def open_data(data: str | Path, bad_shards: Policy = "stop") -> Dataset:
    """`bad_shards` says what to do about a shard that is broken; other data has none."""
    text = str(data)
    whole, _, split = text.rpartition(":")
    if whole and split in SPLIT_NAMES and not text.startswith("hf:") and not Path(text).expanduser().exists():
        return open_data(whole, bad_shards).only(SPLIT_NAMES[split])
    path = Path(text).expanduser()
    if text.startswith("builtin:"):
        from vitreous.data.builtin import open_builtin

        return open_builtin(text.removeprefix("builtin:"))
    if text.startswith("hf:"):
        from vitreous.data.hub import open_hub

        return open_hub(text)
    if text.startswith("vtab:"):
        from vitreous.data.vtab import open_vtab

        return open_vtab(text, bad_shards)
    if path.is_dir() and (found := _originals(text, path)) is not None:
        return found
    if text.endswith(TARS) or "://" in text or (path.is_dir() and _holds_shards(path)):
        from vitreous.data.shards import open_shards

        return open_shards(text, bad_shards=bad_shards)
    if path.is_dir():
        from vitreous.data.folder import open_folder

        return open_folder(path)
    if path.is_file():
        from vitreous.data.manifest import ENDINGS, open_manifest

        if path.suffix.lower() in ENDINGS:
            return open_manifest(path)
        raise VitreousError(f"{text}: neither a folder nor a manifest ({', '.join(ENDINGS)}) nor a shard (.tar)")
    return _named(text)


def _originals(text: str, folder: Path) -> Dataset | None:
    """A folder that bears a known set's name and holds its original files is that set, and no folder of pictures or shards."""
    from vitreous.data import named
    from vitreous.data.formats.place import Absent

    if not (named.is_known(text) and named.find(text).files):
        return None
    try:
        return named.open_named(text, folder)
    except Absent:
        return None


def _holds_shards(folder: Path) -> bool:
    """Tar files and nothing else that could be data: an archive left lying beside class folders does not count."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    if not any(entry.name.endswith(TARS) for entry in entries):
        return False
    return not any(entry.is_dir() or is_image_name(entry.name) for entry in entries)


def _named(text: str) -> Dataset:
    from vitreous.data import builtin, named

    name, _, folder = text.partition("@")
    if named.is_known(name):
        return named.open_named(name, Path(folder).expanduser() if folder else None)
    if "/" in name or Path(name).suffix or name.startswith((".", "~")):
        raise VitreousError(f"{text}: no such file or folder; check the path")
    known = {**{each: each for each in named.names()}, **{entry.name: f"builtin:{entry.name}" for entry in builtin.BUILTIN}}
    hint = "".join(f"did you mean {known[close]!r}? " for close in nearest(name, known))
    raise VitreousError(f"{text!r}: no such file or folder, and no known data set; {hint}`vitreous list data` shows them")
