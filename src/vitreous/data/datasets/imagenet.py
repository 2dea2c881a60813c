"""ImageNet (ILSVRC 2012), as its own archives unpack.

    train/n01440764/*.JPEG              a folder for each synset
    val/n01440764/*.JPEG                the same, as usually arranged, or
    val/ILSVRC2012_val_00000001.JPEG    as distributed; then the devkit has the labels
    ILSVRC2012_devkit_t12[.tar.gz]      names of the classes, and labels of the flat val/

The classes are in the order of their synsets, as in all weights. The devkit numbers them otherwise, by its ILSVRC2012_ID.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.dataset_dir import DatasetDir, MissingFiles, text_lines
from vitreous.data.datasets.image_files import image_dataset, unpack_archives
from vitreous.data.datasets.matlab import check_integers, read_mat
from vitreous.data.source import ALL, Dataset, LeftOut, Source
from vitreous.data.sources.file_source import FileSource
from vitreous.data.sources.folder import open_folder

_DEVKIT = "ILSVRC2012_devkit_t12"
_TRUTH, _META = "data/ILSVRC2012_validation_ground_truth.txt", "data/meta.mat"
_FOLDERS = {"train": ("train",), "validation": ("val", "validation")}
_SYNSET = re.compile(r"n\d{8}")
_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
_TWICE = {"n02012849": "crane (bird)", "n03126707": "crane (machine)"}  # the one word that two synsets consist of


@dataclass(frozen=True)
class Devkit:
    synsets: tuple[str, ...]  # sorted: the order of the classes
    names: tuple[str, ...]
    truth: NDArray[np.int64]  # the class of each validation image, in the order of their numbers


def open_imagenet(place: DatasetDir) -> Dataset:
    folders = _find_splits(place.root) or _find_splits(place.root / "ILSVRC" / "Data" / "CLS-LOC")
    if not folders:
        raise MissingFiles(f"{place.where}: neither train/ nor val/ in {place.root}")
    devkit = _find_devkit(place)
    opened = {
        split: _open_flat_validation(place, folder, devkit) if _is_flat(folder) else open_folder(folder)
        for split, folder in folders.items()
    }
    synsets = devkit.synsets if devkit else tuple(sorted({name for found in opened.values() for name in found.classes}))
    classes = devkit.names if devkit else synsets
    sources: dict[str, Source] = {}
    left_out: list[LeftOut] = []
    for split, found in opened.items():
        source = found.splits.get(split) or found.splits.get(ALL)
        assert isinstance(source, FileSource)
        name = folders[split].name
        if ALL in found.splits:  # under ImageNet's numbers of classes
            numbers = _number_classes(place, name, found, synsets)
            table = dataclasses.replace(
                source.table,
                root=str(folders[split].parent),
                folders=tuple(f"{name}/{folder}" for folder in source.table.folders),
                labels=dataclasses.replace(source.table.labels, ids=numbers[source.table.labels.ids]),
                mapped_from=None,
            )
            source = FileSource(place.where, split, classes, table, source.start, source.stop)
        sources[split] = source
        left_out += [entry._replace(path=f"{name}/{entry.path}") for entry in found.left_out]
    return Dataset(place.where, classes, sources, tuple(_describe_classes(place, devkit, synsets)), tuple(left_out))


def _describe_classes(place: DatasetDir, devkit: Devkit | None, synsets: tuple[str, ...]) -> list[str]:
    if devkit:
        return []
    notes = [f"{place.where}: classes go by their synsets; with {_DEVKIT}.tar.gz in {place.root} they have names"]
    if len(synsets) != 1000:
        notes.append(f"{place.where}: {len(synsets):,} synsets, so that class numbers are not those of ImageNet's 1,000")
    return notes


def _find_splits(base: Path) -> dict[str, Path]:
    present = {split: [base / name for name in names if (base / name).is_dir()] for split, names in _FOLDERS.items()}
    return {split: folders[0] for split, folders in present.items() if folders}


def _is_flat(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(_IMAGE.fullmatch(entry.name) for entry in entries)


def _number_classes(place: DatasetDir, folder: str, found: Dataset, synsets: tuple[str, ...]) -> NDArray[np.int32]:
    """For each folder the number of its class."""
    number = {name: index for index, name in enumerate(synsets)}
    for name in found.classes:
        if not _SYNSET.fullmatch(name):
            raise VitreousError(
                f"{place.where}: {folder}/{name} in {place.root} is not a synset such as n01440764; "
                f"give the folder itself as data if its classes are others than ImageNet's"
            )
        if name not in number:
            raise VitreousError(
                f"{place.where}: {folder}/{name} in {place.root} is not among the devkit's {len(synsets):,} synsets"
            )
    if not found.classes:
        raise VitreousError(
            f"{place.where}: {place.root / folder} has images and no folders of synsets; for the training images make them "
            f"with the archives n*.tar in ILSVRC2012_img_train.tar"
        )
    return np.array([number[name] for name in found.classes], np.int32)


# The devkit -----------------------------------------------------------------------------------------------------------------


def _open_flat_validation(place: DatasetDir, folder: Path, devkit: Devkit | None) -> Dataset:
    """val/ as it comes: the number in a file's name leads to its label."""
    if devkit is None:
        raise VitreousError(
            f"{place.where}: {folder} has no folders of synsets, so that its labels are in the devkit alone; "
            f"put {_DEVKIT}.tar.gz in {place.root}"
        )
    listed = []
    for name in sorted(path.name for path in folder.iterdir()):
        if found := _IMAGE.fullmatch(name):
            number = int(found[1])
            if not 1 <= number <= len(devkit.truth):
                raise VitreousError(f"{folder / name}: the devkit has labels for {len(devkit.truth):,} images only")
            listed.append((f"{folder.name}/{name}", int(devkit.truth[number - 1])))
    return image_dataset(place, folder.parent, devkit.names, {"validation": listed})


def _find_devkit(place: DatasetDir) -> Devkit | None:
    base = place.base(_META, _DEVKIT)
    if base is None:
        archive = place.find(f"{_DEVKIT}.tar.gz")
        if archive is None:
            return None
        members = (f"{_DEVKIT}/{_META}", f"{_DEVKIT}/{_TRUTH}")
        base = unpack_archives(place, [archive], members.__contains__) / _DEVKIT
        if not all((base / file).exists() for file in (_META, _TRUTH)):
            raise VitreousError(
                f"{archive}: lacks {_META} or {_TRUTH}; another archive than the devkit of 2012's tasks 1 and 2"
            )
    return read_devkit(base)


def read_devkit(folder: Path) -> Devkit:
    meta, truth = folder / _META, folder / _TRUTH
    (table,) = read_mat(meta, "synsets")
    try:
        rows = [_parse_row(row) for row in table]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise VitreousError(f"{meta}: not the table of synsets that it should be ({error}); fetch it again") from error
    leaves = sorted((synset, number, words) for number, synset, words, children in rows if children == 0)
    order = {number: index for index, (_, number, _) in enumerate(leaves)}
    if not leaves or sorted(order) != list(range(1, len(leaves) + 1)):
        raise VitreousError(f"{meta}: its classes are not numbered from 1 on; another file than the original")
    lines = text_lines(truth)
    if not all(line.isdigit() and line.isascii() for line in lines):
        raise VitreousError(f"{truth}: expected one number a line")
    ids = check_integers(truth, "class", np.array([int(line) for line in lines], np.int64), 1, len(leaves))
    synsets = tuple(synset for synset, _, _ in leaves)
    names = _name_classes(synsets, [words for _, _, words in leaves])
    return Devkit(synsets, names, np.array([order[number] for number in ids.tolist()], np.int64))


def _parse_row(row: dict[str, Any]) -> tuple[int, str, str, int]:
    """Number, synset, words and number of children. Matlab's numbers are arrays, of one number here."""
    return int(row["ILSVRC2012_ID"].item()), str(row["WNID"]), str(row["words"]), int(row["num_children"].item())


def _name_classes(synsets: tuple[str, ...], words: list[str]) -> tuple[str, ...]:
    """The first word of each synset; all of them where two begin alike."""
    firsts = [text.split(", ")[0] for text in words]
    often = Counter(firsts)
    names = [
        _TWICE.get(synset) or (first if often[first] == 1 else text)
        for synset, first, text in zip(synsets, firsts, words, strict=True)
    ]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return tuple(f"{name} ({synset})" if name in twice else name for synset, name in zip(synsets, names, strict=True))
