"""ReaL: the reassessed labels of ImageNet's validation images (Beyer et al. 2020).

The original file, real.json, is a list with one list of classes for each of the 50,000 images, in the order of their
numbers: entry 0 is ILSVRC2012_val_00000001.JPEG. About 3,000 of the lists are empty; such images are left out of
the evaluation.
"""

from __future__ import annotations

import re
from pathlib import Path

from vitreous.core.errors import VitreousError
from vitreous.core.untrusted_json import read_json
from vitreous.data.source import Source
from vitreous.data.sources.relabelled import Relabelled

CLASSES = 1000

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})\.")


def read_real_labels(path: Path, count: int = 50_000) -> tuple[tuple[int, ...], ...]:
    """The classes of each image, by its number."""
    try:
        lists = read_json(path)
    except (OSError, ValueError) as error:
        raise VitreousError(f"{path}: cannot be read as JSON ({error}); it should be the original real.json") from error
    if not isinstance(lists, list) or len(lists) != count:
        found = f"{len(lists):,} entries" if isinstance(lists, list) else "no list"
        raise VitreousError(f"{path}: {found}, where the ReaL labels have {count:,}; it should be the original real.json")
    for number, labels in enumerate(lists, 1):
        if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < CLASSES for label in labels):
            raise VitreousError(
                f"{path}: entry {number:,} is {str(labels)[:60]}, not a list of classes from 0 to {CLASSES - 1}"
            )
    return tuple(tuple(labels) for labels in lists)


def apply_real_labels(source: Source, path: Path) -> Source:
    """ImageNet's validation images with their ReaL labels, found by the number in each name, whatever their order."""
    if len(source.classes) != CLASSES:
        raise VitreousError(f"{source.where}: ReaL labels are for ImageNet's {CLASSES:,} classes, not {len(source.classes):,}")
    known = read_real_labels(path)
    labels = []
    for index in range(len(source)):
        found = _NUMBER.search(source.id(index))
        if not found or not 1 <= int(found[1]) <= len(known):
            raise VitreousError(f"{source.place(index)}: not one of ImageNet's validation images, by its name; no ReaL labels")
        labels.append(known[int(found[1]) - 1])
    return Relabelled(source, labels)
