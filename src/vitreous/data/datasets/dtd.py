"""Describable Textures: dtd/images/CLASS/*.jpg and ten sets of splits; results are usually reported on the first."""

from __future__ import annotations

from pathlib import Path

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.dataset_dir import DatasetDir, text_lines
from vitreous.data.datasets.image_files import image_dataset, unpack_archives
from vitreous.data.source import Dataset

_ARCHIVE = "dtd-r1.0.1.tar.gz"
_LISTS = {"train": "labels/train1.txt", "validation": "labels/val1.txt", "test": "labels/test1.txt"}
_NOTE = "division 1 of the 10 that DTD has"


def open_dtd(place: DatasetDir) -> Dataset:
    lists = tuple(_LISTS.values())
    root = place.base(_LISTS["test"], "dtd", "dtd/dtd") or (
        unpack_archives(place, [place.need(_ARCHIVE)], lambda name: name.endswith((".jpg", *lists))) / "dtd"
    )
    listed = {split: _read_list(root / file) for split, file in _LISTS.items()}
    classes = tuple(sorted({line.partition("/")[0] for lines in listed.values() for line in lines}))
    number = {name: label for label, name in enumerate(classes)}
    splits = {split: [(f"images/{line}", number[line.partition("/")[0]]) for line in lines] for split, lines in listed.items()}
    return image_dataset(place, root, classes, splits, (f"{place.where}: {_NOTE}",))


def _read_list(path: Path) -> list[str]:
    lines = text_lines(path)
    for line in lines:
        if line.count("/") != 1 or ".." in line or "\\" in line:
            raise VitreousError(f"{path}: {line!r} is not CLASS/IMAGE; another file than the original")
    return lines
