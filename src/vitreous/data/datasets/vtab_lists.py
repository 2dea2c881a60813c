"""VTAB-1k in the layout that most papers share: a folder for each task, with images and lists of them.

    clevr_count/train800.txt  val200.txt  train800val200.txt  test.txt      images/test/000000.jpg 3
    clevr_count/images/...

Also as tar shards in the webdataset layout: clevr_count/train800-000.tar, val200-000.tar, test-000.tar ...
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path, PurePosixPath

from vitreous.core.errors import VitreousError
from vitreous.data.conventions import TARS
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.image_files import image_dataset
from vitreous.data.datasets.vtab_tasks import VtabTask
from vitreous.data.shards.index import INDEX, read_index_beside
from vitreous.data.shards.reader import Shards, open_shard_lists
from vitreous.data.source import Dataset, Policy

FIRST, SECOND, BOTH, TEST = "train800", "val200", "train800val200", "test"

_REMEDY = "unpack the whole of the task's folder again"


def _name_parts(sweep: bool, joined: bool) -> dict[str, tuple[str, ...]]:
    """The lists or shards that each split consists of; `joined` where the 800 and the 200 lie in one of their own."""
    if sweep:
        return {"train": (FIRST,), "validation": (SECOND,)}
    return {"train": (BOTH,) if joined else (FIRST, SECOND), "test": (TEST,)}


# Lists ----------------------------------------------------------------------------------------------------------------------


def has_lists(folder: Path) -> bool:
    return any((folder / f"{name}.txt").is_file() for name in (FIRST, BOTH))


def open_lists(place: DatasetDir, task: VtabTask, sweep: bool) -> Dataset:
    names = _name_parts(sweep, (place.root / f"{BOTH}.txt").is_file())
    splits = {split: [row for name in own for row in _read_list(place, task, name)] for split, own in names.items()}
    _check_disjoint(place, splits)
    return image_dataset(place, place.root, task.names, splits, remedy=_REMEDY)


def _read_list(place: DatasetDir, task: VtabTask, name: str) -> list[tuple[str, int]]:
    path = place.root / f"{name}.txt"
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise VitreousError(f"{place.where}: no {path}; {_REMEDY}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise VitreousError(f"{path}: cannot be read as text ({error}); {_REMEDY}") from error
    found: dict[str, tuple[int, int]] = {}  # its label, and the line it stands on
    for number, line in enumerate(lines, start=1):
        if line.strip():
            image, label = _parse_entry(f"{path}: line {number}", line.strip(), task)
            if image in found:
                raise VitreousError(
                    f"{path}: line {number}: {image} stands on line {found[image][1]} already; remove one of them"
                )
            found[image] = (label, number)
    if not found:
        raise VitreousError(f"{path}: lists no images; each line names one and its label, as in images/{name}/000000.jpg 3")
    return [(image, label) for image, (label, _) in found.items()]


def _parse_entry(where: str, line: str, task: VtabTask) -> tuple[str, int]:
    words = line.rsplit(maxsplit=1)
    if len(words) != 2 or not re.fullmatch("-?[0-9]{1,18}", words[1]):
        raise VitreousError(f"{where}: {line!a} is not PATH LABEL, as in images/test/000000.jpg 3")
    image, label = PurePosixPath(words[0]), int(words[1])
    if image.is_absolute() or ".." in image.parts or any(sign in words[0] for sign in "\\:\0"):
        raise VitreousError(f"{where}: {words[0]!a} leads out of the task's folder; such a list is not read")
    if not 0 <= label < task.classes:
        raise VitreousError(
            f"{where}: label {label}; {task.title} has the classes 0 to {task.classes - 1}; is it another task's?"
        )
    return str(image), label


def _check_disjoint(place: DatasetDir, splits: dict[str, list[tuple[str, int]]]) -> None:
    """Refuse an image that is in two splits."""
    (one, first), (other, second) = splits.items()
    both = {path for path, _ in first}.intersection(path for path, _ in second)
    if both:
        example = min(both)
        raise VitreousError(f"{place.where}: {example} is in {one} and in {other} ({len(both):,} such images); {_REMEDY}")


# Shards ---------------------------------------------------------------------------------------------------------------------


def has_shards(folder: Path) -> bool:
    return bool(_list_shards(folder, FIRST) or _list_shards(folder, BOTH))


def open_task_shards(place: DatasetDir, task: VtabTask, sweep: bool, bad_shards: Policy) -> Dataset:
    names = _name_parts(sweep, bool(_list_shards(place.root, BOTH)))
    files = {split: [path for name in own for path in _need_shards(place, name)] for split, own in names.items()}
    index = read_index_beside([shard for own in files.values() for shard in own])
    opened = open_shard_lists(place.where, files, index, bad_shards)
    classes = _choose_classes(place, task, opened.classes)
    splits = {
        split: dataclasses.replace(stream, classes=classes)
        for split, stream in opened.splits.items()
        if isinstance(stream, Shards)
    }
    return Dataset(place.where, classes, splits, opened.notes)


def _list_shards(folder: Path, name: str) -> list[str]:
    try:
        entries = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []
    return [str(folder / entry) for entry in entries if entry.startswith((f"{name}-", f"{name}.")) and entry.endswith(TARS)]


def _need_shards(place: DatasetDir, name: str) -> list[str]:
    found = _list_shards(place.root, name)
    if not found:
        raise VitreousError(f"{place.where}: no {name}-*.tar in {place.root}, beside the other shards; fetch or make it")
    return found


def _choose_classes(place: DatasetDir, task: VtabTask, found: tuple[str, ...]) -> tuple[str, ...]:
    """The task's, for labels that are numbers; the shards' own names where they have as many."""
    numbered = all(name.isascii() and name.isdigit() for name in found)
    if len(found) == task.classes or (numbered and len(found) < task.classes):
        return task.names if numbered else found
    raise VitreousError(
        f"{place.where}: the shards have {len(found):,} classes, {task.title} has {task.classes:,}; "
        f"is it another task's, or is an {INDEX} with their names missing?"
    )
