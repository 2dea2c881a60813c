"""Oxford-IIIT Pets: images/*.jpg, and annotations/trainval.txt and test.txt with lines NAME CLASS SPECIES BREED.

Classes are numbered from 1 and have their names from the files: `Abyssinian_12.jpg`, `american_bulldog_7.jpg`.
"""

from __future__ import annotations

import re
from pathlib import Path

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.dataset_dir import DatasetDir, MissingFiles, text_lines
from vitreous.data.datasets.image_files import image_dataset, unpack_archives
from vitreous.data.source import Dataset

_LISTS = {"train": "trainval.txt", "test": "test.txt"}
_ARCHIVES = ("images.tar.gz", "annotations.tar.gz")
_LINE = re.compile(r"([^/\\\s]+)_(\d+) (\d+) \d+ \d+")


def open_pets(place: DatasetDir) -> Dataset:
    root = _find_root(place)
    splits: dict[str, list[tuple[str, int]]] = {}
    names: dict[int, str] = {}
    for split, file in _LISTS.items():
        path = root / "annotations" / file
        splits[split] = []
        for line in text_lines(path):
            if line.startswith("#"):
                continue
            found = _LINE.fullmatch(line)
            if not found:
                raise VitreousError(f"{path}: {line!r} is not NAME CLASS SPECIES BREED; another file than the original")
            breed, label = found[1].replace("_", " "), int(found[3]) - 1
            if names.setdefault(label, breed) != breed:
                raise VitreousError(f"{path}: class {label + 1} is both {names[label]!r} and {breed!r}; not the original file")
            splits[split].append((f"images/{found[1]}_{found[2]}.jpg", label))
    if sorted(names) != list(range(len(names))) or len(set(names.values())) != len(names):
        raise VitreousError(f"{root / 'annotations'}: its classes are not numbered from 1 to {len(names)}, or two share a name")
    return image_dataset(place, root, tuple(names[label] for label in sorted(names)), splits)


def _find_root(place: DatasetDir) -> Path:
    for root in (place.root, place.root / "oxford-iiit-pet"):
        if all((root / path).exists() for path in ("images", *(f"annotations/{file}" for file in _LISTS.values()))):
            return root
        archives = [root / name for name in _ARCHIVES]
        if all(archive.exists() for archive in archives):
            # The annotations hold 7,390 outlines too, and the images a few stray .mat files.
            return unpack_archives(place, archives, lambda name: name.endswith((".jpg", *_LISTS.values())))
    raise MissingFiles(f"{place.where}: no {' and '.join(_ARCHIVES)} in {place.root}")
