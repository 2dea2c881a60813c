"""Data sets that are image files with lists of splits and labels; unpacked once if they come in archives."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.archive import NameFilter, unpack
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.source import Dataset
from vitreous.data.sources.file_source import FileSource, Group, build_table

Listed = Sequence[tuple[str, int]]  # paths below the root, with slashes, and the class of each


def unpack_archives(place: DatasetDir, archives: Sequence[Path], keep: NameFilter, name: str | None = None) -> Path:
    """A folder in the cache with the members to keep of these archives; `name` tells several of one set apart."""

    def make(folder: Path) -> None:
        for archive in archives:
            unpack(archive, folder, keep)

    return prepare_once(name or place.name, archives, make)


def image_dataset(
    place: DatasetDir,
    root: Path,
    classes: tuple[str, ...],
    splits: Mapping[str, Listed],
    notes: tuple[str, ...] = (),
    remedy: str = "",
) -> Dataset:
    """One table over all splits; every file that a list names must be there, and `remedy` says what to do if it is not."""
    remedy = remedy or f"unpack the whole archive, or put the archive itself in {place.root}"
    here = _list_files(root, {path.rpartition("/")[0] for listed in splits.values() for path, _ in listed})
    for split, listed in splits.items():
        missing = [path for path, _ in listed if path not in here]
        if missing:
            others = f" and {len(missing) - 1:,} others" if len(missing) > 1 else ""
            raise VitreousError(f"{place.where}: {root / missing[0]}{others} of the {split} list are not there; {remedy}")
    table, ranges = build_table(str(root), {split: _group_by_folder(listed) for split, listed in splits.items()})
    sources = {split: FileSource(place.where, split, classes, table, *ends) for split, ends in ranges.items()}
    return Dataset(place.where, classes, sources, notes)


def _group_by_folder(listed: Listed) -> Iterator[Group]:
    """Runs of files in the same folder, so that the order of the list is kept."""
    for folder, files in itertools.groupby(listed, key=lambda entry: entry[0].rpartition("/")[0]):
        names, labels = zip(*((path.rpartition("/")[2], (label,)) for path, label in files), strict=True)
        yield folder, names, labels


def _list_files(root: Path, folders: Iterable[str]) -> set[str]:
    """Looking into a folder once is far quicker than asking for each file."""
    found: set[str] = set()
    for folder in folders:
        try:
            with os.scandir(root / folder) as entries:
                found.update(f"{folder}/{entry.name}" if folder else entry.name for entry in entries)
        except OSError:
            continue  # its files are reported as missing
    return found


def list_class_folders(root: Path, endings: tuple[str, ...]) -> dict[str, list[str]]:
    """The image files in each folder of `root`, all in the order of their names."""
    found: dict[str, list[str]] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        found[folder.name] = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(endings))
    return {name: files for name, files in found.items() if files}
