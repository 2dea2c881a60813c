"""From what a person types for DATA to a data set.

photos/                   a folder (see `folder`), or one with shards in it
list.csv  list.jsonl      a manifest (see `manifest`)
train-{000..127}.tar      shards, here or at s3://, gs://, https:// (see `shards`)
builtin:digits            built in (see `builtin`)
cifar10  cifar10@DIR      a known set in its original files, in DIR or fetched (see `named`)
hf:OWNER/NAME             Hugging Face datasets (see `hub`)
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from vitreous.data.source import Dataset
from vitreous.errors import VitreousError, nearest


def open_data(data: str | Path, bad_shards: Literal["stop", "skip"] = "stop") -> Dataset:
    """`bad_shards` says what to do about a shard that is broken; other data has none."""
    text = str(data)
    path = Path(text).expanduser()
    if text.startswith("builtin:"):
        from vitreous.data.builtin import open_builtin

        return open_builtin(text.removeprefix("builtin:"))
    if text.startswith("hf:"):
        from vitreous.data.hub import open_hub

        return open_hub(text)
    if _is_shards(text, path):
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
    return _named(text, path)


def _is_shards(text: str, path: Path) -> bool:
    if text.endswith((".tar", ".tar.gz", ".tgz")) or "://" in text:
        return True
    return path.is_dir() and any(entry.name.endswith((".tar", ".tar.gz", ".tgz")) for entry in path.iterdir())


def _named(text: str, path: Path) -> Dataset:
    from vitreous.data import builtin, named

    name, _, folder = text.partition("@")
    known = [*named.names(), *(f"builtin:{entry.name}" for entry in builtin.BUILTIN)]
    looks_like_path = "/" in name or path.suffix or name.startswith((".", "~"))
    if looks_like_path:
        raise VitreousError(f"{text}: no such file or folder")
    if not named.is_known(name):
        raise VitreousError(
            f"{text!r}: no such file or folder, and no known data set; did you mean {nearest(name, known)[0]!r}? "
            f"`vitreous list data` shows them"
        )
    return named.open_named(name, Path(folder).expanduser() if folder else None)
