"""A folder of images as a data set. Three layouts are understood:

    photos/cat/1.jpg                    a folder for each class; what lies deeper in it belongs to the class too
    photos/train/cat/1.jpg              the same for each split: train, val or validation, test
    photos/1.jpg                        images without labels

Hidden files and folders are ignored, so that `.ipynb_checkpoints` never becomes a class. Classes are the union over the
splits, in the order of their names; a folder that is empty in every split is not a class. What else is left out is listed.

The index is kept in the cache and used again while no folder in it has changed: adding, removing or renaming a file
changes its folder's times.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_folder, cache_dir, is_directory
from vitreous.core.untrusted_json import parse_json
from vitreous.data.conventions import SPLIT_NAMES, sort_class_names
from vitreous.data.source import ALL, EMPTY_SPLIT, NOT_BY_NAME, SPLITS, Dataset, LeftOut
from vitreous.data.sources.file_source import FileSource, FileTable, Group, build_table
from vitreous.data.transforms.image_formats import is_image_name, suffixes

Why: TypeAlias = Literal["not-an-image", "symlink-loop", "unreadable", "empty-class", "left-out"]
_VERSION = 5  # of the cached index
_SETTLED = 2.0  # seconds: a folder younger than this may change again without its time of modification showing it
_LISTED = 10_000  # how many left-out files are kept by name


def open_folder(folder: Path) -> Dataset:
    root = folder.resolve()
    index = _load_cached_index(root) or _cache_index(root, _walk_folder(root))
    return _make_dataset(str(folder), index)


# The index ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Index:
    table: FileTable
    classes: tuple[str, ...]
    ranges: dict[str, tuple[int, int]]  # of each split in the table
    own_classes: dict[str, tuple[str, ...]]
    left_out: tuple[LeftOut, ...]
    left_out_count: int
    states: dict[str, list[int]]  # of every folder that was looked into
    certain: bool = True


def _make_dataset(where: str, index: _Index) -> Dataset:
    splits = {
        split: FileSource(where, split, index.classes, index.table, start, stop)
        for split, (start, stop) in index.ranges.items()
    }
    return Dataset(where, index.classes, splits, (), index.left_out, index.left_out_count, index.own_classes)


def _version() -> str:
    """Which files are images depends on the formats that Pillow reads here."""
    return f"{_VERSION} {' '.join(sorted(suffixes()))}"


def _load_cached_index(root: Path) -> _Index | None:
    """The index from an earlier time, if it is still true."""
    folder = _cache_path(root)
    try:
        document = parse_json((folder / "index.json").read_text(encoding="utf-8", errors="surrogateescape"), most=1 << 30)
        if document["version"] != _version() or document["root"] != str(root):
            return None
        if any(_folder_state((root / name).stat()) != state for name, state in document["states"].items()):
            return None
        table = FileTable.mapped(folder, str(root), tuple(document["folders"]))
        return _Index(
            table,
            tuple(document["classes"]),
            {split: (start, stop) for split, (start, stop) in document["ranges"].items()},
            {split: tuple(names) for split, names in document["own_classes"].items()},
            tuple(LeftOut(*entry) for entry in document["left_out"]),
            document["left_out_count"],
            document["states"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
        return None  # there is none, or it is from another version, or damaged: it is made again


def _cache_index(root: Path, index: _Index) -> _Index:
    """The index, put into the cache and mapped from there; if that cannot be, as it is."""
    newest = max(max(state[:2]) for state in index.states.values())
    if not index.certain or time.time_ns() - newest < _SETTLED * 1e9:
        return index
    document = {
        "version": _version(),
        "root": str(root),
        "folders": index.table.folders,
        "classes": index.classes,
        "ranges": index.ranges,
        "own_classes": index.own_classes,
        "left_out": index.left_out,
        "left_out_count": index.left_out_count,
        "states": index.states,
    }
    try:
        with atomic_folder(_cache_path(root)) as part:
            index.table.save(part)
            text = json.dumps(document, ensure_ascii=False)
            (part / "index.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    except (VitreousError, OSError):  # a full disk, or one that may only be read: the index is a convenience
        return index
    return _load_cached_index(root) or index


def _cache_path(root: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", root.name)[:40]
    return cache_dir() / "index" / f"{readable}-{digest}"


# Looking through the folder ---------------------------------------------------------------------------------------------------


class _Walk:
    """What is met on the way."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.left_out: list[LeftOut] = []
        self.left_out_count = 0
        self.states: dict[str, list[int]] = {}
        self.certain = True  # whether another walk would find the same while the folders' states are the same

    def leave_out(self, path: str, why: str, kind: Why = "left-out") -> None:
        self.left_out_count += 1
        if len(self.left_out) < _LISTED:
            self.left_out.append(LeftOut(path, why, kind))

    def look(self, folder: str, above: tuple[tuple[int, int], ...]) -> _Listing | None:
        """The visible entries of a folder, sorted; None where links lead back to a folder that one came through."""
        path = self.root / folder
        try:
            status = path.stat()
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                self.leave_out(folder, "a link that leads in a circle", "symlink-loop")
                return None
            self.states[folder] = _folder_state(status)
            folders, images = [], []
            with os.scandir(path) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    name = entry.name
                    if name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini"):
                        continue
                    image = is_image_name(name)
                    if is_directory(entry):
                        if image:
                            self.leave_out(_join(folder, name), "a folder with the name of an image", "not-an-image")
                        else:
                            folders.append(name)
                    elif entry.is_symlink() and not (path / name).exists():
                        self.certain = False  # what it leads to may come back, and no folder here would show it
                        self.leave_out(_join(folder, name), "a link to nothing", "unreadable")
                    elif image:
                        images.append(name)
                    elif folder:  # at the top, a README or a licence is where it belongs
                        self.leave_out(_join(folder, name), NOT_BY_NAME)
        except OSError as error:
            self.certain = False
            self.leave_out(folder, f"cannot be looked into ({error.strerror or error})", "unreadable")
            return None
        return _Listing(folders, images, (*above, identity))

    def below(self, folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, list[str]]]:
        """Every folder in and under this one, with its images."""
        listing = self.look(folder, above)
        if listing is None:
            return
        yield folder, listing.images
        for name in listing.folders:
            yield from self.below(_join(folder, name), listing.path)


@dataclass(frozen=True)
class _Listing:
    folders: list[str]
    images: list[str]
    path: tuple[tuple[int, int], ...]  # device and number of this folder and of those above it


def _folder_state(status: os.stat_result) -> list[int]:
    """What changes when a folder's entries or its permissions do; its place is part of it, for links may be moved."""
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _walk_folder(root: Path) -> _Index:
    walk = _Walk(root)
    top = walk.look("", ())
    if top is None:
        raise VitreousError(f"{root}: {walk.left_out[0][1]}")
    splits = _find_split_folders(walk, top)
    found: dict[str, dict[str, list[tuple[str, list[str]]]]] = {split: {} for split in splits.values()} or {ALL: {}}
    unlabelled: dict[str, list[tuple[str, list[str]]]] = {}
    if splits:
        beside = [(name, "beside the splits, and none itself") for name in top.folders if name not in splits]
        for name, why in [*beside, *((name, "beside the splits") for name in top.images)]:
            walk.leave_out(name, why)
    for name, split in splits.items() or [("", ALL)]:
        listing = walk.look(name, top.path) if name else top
        if listing is None:
            continue
        for child in listing.folders:
            parts = [part for part in walk.below(_join(name, child), listing.path) if part[1]]
            found[split].setdefault(child, []).extend(parts)
        if listing.images:
            unlabelled.setdefault(split, []).append((name, listing.images))
    return _number_files(walk, found, unlabelled)


def _find_split_folders(walk: _Walk, top: _Listing) -> dict[str, str]:
    """Which folders are splits: `train` beside another one, or the only folders with images. A class may be called `train`."""
    named = {name: SPLIT_NAMES[name.lower()] for name in top.folders if name.lower() in SPLIT_NAMES}
    meanings = set(named.values())
    if not named:
        return {}
    if not ("train" in meanings and len(meanings) > 1):
        others = [name for name in top.folders if name not in named and _has_images(walk.root / name)]
        if others and not all(_has_class_folders(walk.root / name) for name in named):
            return {}
        if others:
            first = next(iter(named))
            raise VitreousError(
                f"{walk.root}: is {first!r} a split, beside {others[0]!r}, or a class? Rename one of them, or give "
                f"{walk.root / first} alone"
            )
    if len(meanings) < len(named):
        raise VitreousError(f"{walk.root}: two of the folders {', '.join(sorted(named))} mean the same split; keep one of them")
    return {name: named[name] for name in sorted(named, key=lambda name: SPLITS.index(named[name]))}


def _has_images(folder: Path) -> bool:
    """Anywhere below; links are not followed, or this could go in circles."""
    return any(is_image_name(name) for _, _, names in os.walk(folder) for name in names)


def _has_class_folders(folder: Path) -> bool:
    """Whether it looks like a split: no image in it directly, and some below."""
    return not any(is_image_name(entry.name) for entry in os.scandir(folder)) and _has_images(folder)


def _number_files(
    walk: _Walk,
    found: dict[str, dict[str, list[tuple[str, list[str]]]]],
    unlabelled: dict[str, list[tuple[str, list[str]]]],
) -> _Index:
    """Numbers for classes and files."""
    filled = {split: {name for name, parts in classes.items() if parts} for split, classes in found.items()}
    classes = sort_class_names(set().union(*filled.values()))
    for name in sorted(set().union(*map(set, found.values())) - set(classes)):
        walk.leave_out(name, "a class folder without images", "empty-class")
    splits: dict[str, list[Group]] = {}
    for split, by_class in found.items():
        parts: list[tuple[str, list[str], tuple[int, ...]]] = [
            (*part, (label,)) for label, name in enumerate(classes) for part in by_class.get(name, ())
        ]
        loose = unlabelled.get(split, [])
        if filled[split]:
            for path in (_join(folder, image) for folder, images in loose for image in images):
                walk.leave_out(path, "outside any class folder")
        else:
            parts = [(*part, ()) for part in loose]
        if parts:
            splits[split] = [(folder, images, [label] * len(images)) for folder, images, label in parts]
        elif split != ALL:
            walk.left_out.insert(0, LeftOut(split, EMPTY_SPLIT, "left-out"))  # the first, since not all are kept
            walk.left_out_count += 1
    if not splits:
        if (walk.root / "model.safetensors").exists() or (walk.root / "checkpoint").is_dir():
            raise VitreousError(
                f"{walk.root}: is a checkpoint, where images are expected; the checkpoint comes first, then DATA"
            )
        examples = f"{walk.root.name}/CLASS/IMAGE or {walk.root.name}/train/CLASS/IMAGE"
        raise VitreousError(f"{walk.root}: no images found; expected {examples}, with names ending in .jpg, .png and so on")
    own = {split: tuple(name for name in classes if name in filled[split]) for split in splits}
    table, ranges = build_table(str(walk.root), splits)
    return _Index(table, classes, ranges, own, tuple(walk.left_out), walk.left_out_count, walk.states, walk.certain)
