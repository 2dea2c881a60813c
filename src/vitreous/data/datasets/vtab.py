"""The data of VTAB-1k (Zhai and others, 2019): 19 tasks of 1,000 training images each.

    vtab:pets@DIR           train (the 1,000) and test
    vtab:pets/sweep@DIR     train (800) and validation (200), to choose settings by; the test split stays out of reach

DIR holds the task folders of the `vtab-1k` layout, with lists or shards in them (see `vtab_lists`), or is such a folder. Tasks
whose reader exists are also read from the original files, in DIR itself or in the task's folder. Without DIR,
$VITREOUS_DATA/vtab-1k is meant.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from vitreous.core.errors import VitreousError, first_few
from vitreous.core.files import user_path
from vitreous.data.datasets import clevr, dsprites, kitti, smallnorb
from vitreous.data.datasets.dataset_dir import DatasetDir, MissingFiles
from vitreous.data.datasets.registry import find_dataset
from vitreous.data.datasets.vtab_known import KNOWN, open_known, refuse_caltech101
from vitreous.data.datasets.vtab_lists import has_lists, has_shards, open_lists, open_task_shards
from vitreous.data.datasets.vtab_parts import Parts
from vitreous.data.datasets.vtab_tasks import TASKS, TRAIN_IMAGES, VALIDATION_IMAGES, VtabTask, find_task
from vitreous.data.source import Dataset, Policy

PREFIX = "vtab:"

_SMALLNORB = smallnorb.STEMS["train"]


@dataclasses.dataclass(frozen=True)
class _Original:
    """What a task can be made from, beside lists and shards."""

    open: Callable[[DatasetDir, VtabTask], Parts]
    signs: tuple[tuple[str, ...], ...]  # files or folders: any of these groups tells that it is there
    needed: str  # "": nothing would do

    def lies_in(self, folder: Path) -> bool:
        return any(all((folder / sign).exists() for sign in group) for group in self.signs)


def _any_of(*signs: str) -> tuple[tuple[str, ...], ...]:
    return tuple((sign,) for sign in signs)


_CLEVR = _Original(clevr.open_clevr, _any_of(clevr.FOLDER, clevr.ARCHIVE, "scenes/CLEVR_train_scenes.json"), clevr.ARCHIVE)
_DSPRITES = _Original(dsprites.open_dsprites, _any_of(dsprites.FILE), dsprites.FILE)
_KITTI = _Original(
    kitti.open_kitti,
    _any_of("training/label_2", "kitti/training/label_2", kitti.LABELS, f"kitti/{kitti.LABELS}"),
    f"{kitti.IMAGES}, {kitti.LABELS} and {kitti.KIT}",
)
_NORB = _Original(
    smallnorb.open_smallnorb,
    _any_of(*(f"{folder}{_SMALLNORB}-dat.mat{ending}" for folder in ("", "smallnorb/") for ending in ("", ".gz"))),
    f"{_SMALLNORB}-{{dat,info}}.mat and {smallnorb.STEMS['test']}-{{dat,info}}.mat",
)


def _known(name: str) -> _Original:
    known = find_dataset(name)
    # An archive that the set's authors distribute as well.
    others = {"eurosat": ("EuroSAT_RGB.zip",), "caltech101": ("101_ObjectCategories.tar.gz",)}.get(name, ())
    signs = (*known.signs, tuple(file.name for file in known.files), *_any_of(*others))
    return _Original(open_known, signs, known.needed) if name in KNOWN else _Original(refuse_caltech101, signs, "")


_ORIGINALS = {
    **{name: _known(name) for name in (*KNOWN, "caltech101")},
    "clevr-count": _CLEVR,
    "clevr-distance": _CLEVR,
    "dsprites-location": _DSPRITES,
    "dsprites-orientation": _DSPRITES,
    "kitti-distance": _KITTI,
    "smallnorb-azimuth": _NORB,
    "smallnorb-elevation": _NORB,
}


def open_vtab(text: str, bad_shards: Policy = "stop") -> Dataset:
    """What a person types: `vtab:TASK@DIR` or `vtab:TASK/sweep@DIR`."""
    name, _, folder = text.removeprefix(PREFIX).partition("@")
    name, slash, part = name.partition("/")
    if slash and part != "sweep":
        raise VitreousError(f"{text}: {name}/{part}; write {PREFIX}{name} or, to choose settings by, {PREFIX}{name}/sweep")
    return open_task(find_task(name), Path(folder) if folder else None, sweep=bool(slash), bad_shards=bad_shards)


def open_task(task: VtabTask, root: Path | None, *, sweep: bool = False, bad_shards: Policy = "stop") -> Dataset:
    """A task's data from `root`, or from $VITREOUS_DATA/vtab-1k."""
    typed = f"{PREFIX}{task.name}{'/sweep' if sweep else ''}"
    where = f"{typed}@{root}" if root is not None else typed
    root = _find_root(where, task, root)
    try:
        found = _open_files(task, where, root, sweep, bad_shards)
    except OSError as error:
        raise VitreousError(f"{where}: {error.filename or root} cannot be read ({error.strerror or error})") from error
    published = {"train": TRAIN_IMAGES, "validation": VALIDATION_IMAGES}
    if not sweep:
        published = {"train": TRAIN_IMAGES + VALIDATION_IMAGES, "test": task.test_images}
    differences = found.differences_from(f"VTAB-1k's {task.title}", published)
    return dataclasses.replace(found, notes=(*found.notes, *differences))


def find_tasks(root: Path) -> tuple[VtabTask, ...]:
    """The tasks that seem to lie in this folder. Nothing is read: `open_task` tells whether they are whole."""
    root = user_path(root)
    found = {task: _find_files(task, root) for task in TASKS}
    refused = [task for task in found if task.name in _ORIGINALS and not _ORIGINALS[task.name].needed]
    return tuple(task for task, files in found.items() if files and (files[0] != "original" or task not in refused))


def _find_root(where: str, task: VtabTask, root: Path | None) -> Path:
    if root is None:
        chosen = os.environ.get("VITREOUS_DATA")
        if not chosen:
            raise VitreousError(
                f"{where}: say where its files are, as in {PREFIX}{task.name}@DIR; docs/how-to/vtab.md tells which"
            )
        root = Path(chosen) / "vtab-1k"
    root = user_path(root)
    if not root.is_dir():
        raise VitreousError(f"{where}: no folder {root}; it should hold the task folders of VTAB-1k, such as {task.folder}/")
    return root


def _candidate_folders(task: VtabTask, root: Path) -> Iterator[Path]:
    """Where lists or shards of the task may be: in its folder, or in `root` where that is its folder."""
    yield from (folder for folder in (root / task.folder, root / task.name) if folder.is_dir())
    yield root


def _find_files(task: VtabTask, root: Path) -> tuple[str, Path] | None:
    """What the task would be read from: lists, shards or originals, and in which folder."""
    for folder in _candidate_folders(task, root):
        if folder == root and not _may_be_of(task, root):
            continue
        if has_lists(folder):
            return "lists", folder
        if has_shards(folder):
            return "shards", folder
    if original := _ORIGINALS.get(task.name):
        for folder in _candidate_folders(task, root):
            if original.lies_in(folder):
                return "original", folder
    return None


def _may_be_of(task: VtabTask, root: Path) -> bool:
    """Whether lists in `root` itself may be this task's. Labels that happen to fit would not tell another's."""
    name = root.resolve().name
    if any(name in (other.folder, other.name) for other in TASKS):
        return name in (task.folder, task.name)
    return not any((root / other.folder).is_dir() for other in TASKS)


def _open_files(task: VtabTask, where: str, root: Path, sweep: bool, bad_shards: Policy) -> Dataset:
    kind, folder = _find_files(task, root) or (None, root)
    place = DatasetDir(f"vtab-{task.name}", where, folder)
    if kind == "lists":
        return open_lists(place, task, sweep)
    if kind == "shards":
        return open_task_shards(place, task, sweep, bad_shards)
    original = _ORIGINALS.get(task.name)
    if kind is None or original is None:
        also = f", nor the original {original.needed}" if original and original.needed else "; its originals are not read here"
        others = [other.name for other in find_tasks(root)]
        there = f"there are {first_few(others, 19)}" if others else "docs/how-to/vtab.md tells what is read"
        raise VitreousError(
            f"{where}: neither {task.folder}/train800.txt nor {task.folder}/train800-*.tar in {root}{also}; {there}"
        )
    try:
        return original.open(place, task).dataset(where, sweep)
    except MissingFiles as error:
        raise VitreousError(f"{error}; it should hold {original.needed}") from error
