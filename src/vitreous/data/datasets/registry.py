"""Open known data sets by name: found on disk, else fetched from their authors.

A set is looked for, in this order, in

    $VITREOUS_DATA/NAME         a directory that holds data sets by name; it is only read
    where a package of the system installs it (Debian: dataset-fashion-mnist)
    <cache>/data/NAME           where it is fetched to, and where files may be put by hand

or in the one directory that is given. Archives may lie there as they are distributed, or unpacked.
VITREOUS_DATA_MIRROR names a server that has the files as NAME/FILE, in place of the authors'.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from vitreous.core.download import Missing, fetch
from vitreous.core.errors import VitreousError, unknown_name
from vitreous.core.files import cache_dir, user_path
from vitreous.core.progress import byte_progress
from vitreous.data.datasets.dataset_dir import DatasetDir, MissingFiles
from vitreous.data.datasets.known import SETS, KnownDataset, OriginalFile
from vitreous.data.source import Dataset, Source
from vitreous.data.transforms.image_formats import is_image_name


def dataset_names() -> tuple[str, ...]:
    return tuple(known.name for known in SETS)


def is_known(name: str) -> bool:
    """Whether this is the name of a set, in whichever spelling."""
    return _fold_name(name) in _spellings()


def find_dataset(name: str) -> KnownDataset:
    try:
        return _spellings()[_fold_name(name)]
    except KeyError:
        raise unknown_name("data set", name, dataset_names()) from None


def recognise(folder: Path) -> tuple[KnownDataset, ...]:
    """The sets whose original files this folder holds, whatever it is called. MNIST and Fashion-MNIST have the same names.

    Archives count where nothing else is there: beside class folders they are what these were unpacked from.
    """
    with os.scandir(folder) as entries:
        archives_only = not any(entry.is_dir() or is_image_name(entry.name) for entry in entries if entry.name[0] != ".")

    def holds(paths: Iterable[str]) -> bool:
        return all((folder / path).exists() for path in paths)

    return tuple(
        known
        for known in SETS
        if any(map(holds, known.signs)) or (archives_only and known.files and holds(file.name for file in known.files))
    )


def open_named(name: str, root: Path | None = None) -> Dataset:
    """The data set of that name; from `root` and nowhere else if that is given."""
    known = find_dataset(name)
    if root is not None:
        root = user_path(root)
        if not root.is_dir():
            raise VitreousError(f"{known.name}@{root}: no such directory; it should hold {known.needed}")
        return _open_directory(known, f"{known.name}@{root}", root)
    for directory in _find_directories(known):
        try:
            return _open_directory(known, known.name, directory)
        except MissingFiles:
            if directory != _download_dir(known):  # a directory of the user's that is not what it seems
                raise
    _fetch_files(known)
    found = _open_directory(known, known.name, _download_dir(known))
    host = urlsplit(_address(known, known.files[0])).netloc
    note = f"{known.name}: downloaded from {host}; terms: {known.terms} ({known.page})"
    return dataclasses.replace(found, notes=(*found.notes, note))


def _open_directory(known: KnownDataset, where: str, root: Path) -> Dataset:
    try:
        found = known.open(DatasetDir(known.name, where, root))
    except MissingFiles as error:
        raise MissingFiles(f"{error}; it should hold {known.needed}, as distributed or unpacked ({known.page})") from error
    except OSError as error:
        raise VitreousError(f"{where}: {error.filename or root} cannot be read ({error.strerror or error})") from error
    counts = {split: source.counts().tolist() for split, source in found.splits.items() if isinstance(source, Source)}
    return dataclasses.replace(
        found,
        notes=(*found.notes, *found.differences_from(f"{known.title} as published", known.images)),
        own_classes={
            split: tuple(name for name, count in zip(found.classes, own, strict=True) if count) for split, own in counts.items()
        },
    )


# Where ----------------------------------------------------------------------------------------------------------------------


def _download_dir(known: KnownDataset) -> Path:
    return cache_dir() / "data" / known.name


def _find_directories(known: KnownDataset) -> Iterator[Path]:
    """Directories that exist and should hold the set."""
    if chosen := os.environ.get("VITREOUS_DATA"):
        parent = user_path(chosen)
        if not parent.is_dir():
            raise VitreousError(f"VITREOUS_DATA is {chosen}, which is no directory; make it, or unset the variable")
        spellings = {_fold_name(name) for name in (known.name, *known.aliases)}
        yield from sorted(path for path in parent.iterdir() if path.is_dir() and _fold_name(path.name) in spellings)
    yield from (path for path in map(Path, known.installed) if path.is_dir())
    if _download_dir(known).is_dir():
        yield _download_dir(known)


def _fold_name(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "").replace(" ", "")


def _spellings() -> dict[str, KnownDataset]:
    return {_fold_name(name): known for known in SETS for name in (known.name, *known.aliases)}


# Fetching -------------------------------------------------------------------------------------------------------------------


def _address(known: KnownDataset, file: OriginalFile) -> str:
    mirror = os.environ.get("VITREOUS_DATA_MIRROR")
    return f"{mirror.rstrip('/')}/{known.name}/{file.name}" if mirror else file.url


def _fetch_files(known: KnownDataset) -> None:
    folder = _download_dir(known)
    put = f"put {known.needed} into {folder}, or a directory {known.name} with them into one that VITREOUS_DATA names"
    if not known.files:
        raise VitreousError(
            f"{known.name}: not found, and its terms do not allow fetching it for you: see {known.page}, then {put}"
        )
    for file in known.files:
        address = _address(known, file)
        with byte_progress(f"{known.name} {file.name}") as progress:
            try:
                remedy = f"or {put}; VITREOUS_DATA_MIRROR names another server"
                fetch(address, folder / file.name, sha256=file.sha256, md5=file.md5, progress=progress, remedy=remedy)
            except Missing as error:
                raise VitreousError(f"{error}; see {known.page}, then {put}") from error
