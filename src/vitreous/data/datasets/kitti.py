"""KITTI's object set: training/image_2/000000.png and training/label_2/000000.txt, unpacked or in their two zip files.

The images are frames of drives, and neighbouring frames look alike. TensorFlow Datasets, and VTAB with it, therefore
assigns whole drives to splits: a tenth for testing, a tenth for validation, drawn with a fixed seed from the list of
drives in the development kit (mapping/train_rand.txt and mapping/train_mapping.txt of devkit_object.zip). With that kit the
splits are the same here. Without it, which frames belong together is unknown, and frames are assigned one by one.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError, one_line
from vitreous.data.datasets.archive import NameFilter
from vitreous.data.datasets.dataset_dir import DatasetDir, text_lines
from vitreous.data.datasets.image_files import Listed, unpack_archives
from vitreous.data.datasets.tfds_order import sort_as_tfds
from vitreous.data.datasets.vtab_parts import Parts, choose_examples, image_parts
from vitreous.data.datasets.vtab_rules import bin_by_thresholds, check_labels
from vitreous.data.datasets.vtab_tasks import KITTI_DISTANCES, VtabTask

IMAGES, LABELS, KIT = "data_object_image_2.zip", "data_object_label_2.zip", "devkit_object.zip"
_IMAGES, _LABELS = "training/image_2", "training/label_2"

_VEHICLES = ("Car", "Van", "Truck")
_TYPES = (*_VEHICLES, "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc", "DontCare")
_COLUMNS, _Z = 15, 13  # type, truncated, occluded, alpha, box (4), size (3), place (x, y, z), rotation
_DISTANCE = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,2})?")
_NO_VEHICLE = 1000.0
_SEED, _SHARE = 123, 10  # TensorFlow Datasets' own; in percent
_NOTE = (
    f"without mapping/ of {KIT} frames are assigned to splits one by one; frames of one drive fall into both, so that the "
    f"score comes out too high to compare"
)


def open_kitti(place: DatasetDir, task: VtabTask) -> Parts:
    folder = _find_folder(place, _LABELS, LABELS, lambda name: name.startswith(f"{_LABELS}/"), "labels") / _LABELS
    names = sorted(path.stem for path in folder.glob("*.txt") if path.stem.isascii() and path.stem.isdigit())
    if not names:
        raise VitreousError(f"{place.where}: no label files (000000.txt ...) in {folder}; unpack {LABELS} again")
    kit = _find_mapping(place)
    splits = _split_by_frame(names) if kit is None else _split_by_drive(names, kit)
    ordered = {split: own[sort_as_tfds(split, [f"{names[n]}.png" for n in own.tolist()])] for split, own in splits.items()}
    part = choose_examples(ordered["train"], ordered["validation"], ordered["test"], place.where)
    chosen = {"train": part.training, "test": part.test}
    listed: dict[str, Listed] = {}
    for split, numbers in chosen.items():
        own = [names[n] for n in numbers.tolist()]
        distances = np.array([closest_vehicle(folder / f"{name}.txt") for name in own])
        labels = check_labels(str(folder), own, bin_by_thresholds(distances, KITTI_DISTANCES), task.classes)
        listed[split] = [(f"{_IMAGES}/{name}.png", label) for name, label in zip(own, labels.tolist(), strict=True)]
    used = {path for images in listed.values() for path, _ in images}
    root = _find_folder(place, _IMAGES, IMAGES, used.__contains__, "images")
    notes = (f"{place.where}: {_NOTE}",) if kit is None else ()
    return image_parts(place, root, task, listed, len(part.train), notes)


def closest_vehicle(path: Path) -> float:
    """How far ahead, in metres, the nearest car, van or truck is; 1000 if there is none."""
    distances = [_NO_VEHICLE]
    for number, line in enumerate(text_lines(path), start=1):
        words = line.split()
        if len(words) != _COLUMNS or words[0] not in _TYPES or not _DISTANCE.fullmatch(words[_Z]):
            raise VitreousError(
                f"{path}: line {number}: {one_line(line, 100)!a}, where KITTI has a type and {_COLUMNS - 1} numbers, "
                f"{_COLUMNS} columns in all; another file than the original"
            )
        if words[0] in _VEHICLES:
            distances.append(float(words[_Z]))
    return min(distances)


# Where the files are --------------------------------------------------------------------------------------------------------


def _find_folder(place: DatasetDir, folder: str, archive: str, keep: NameFilter, name: str) -> Path:
    """The root that holds `folder`, unpacked from the archive where it is still in one."""
    return place.base(folder, "kitti") or unpack_archives(
        place, [place.need(archive, f"kitti/{archive}")], keep, f"vtab-kitti-{name}"
    )


def _find_mapping(place: DatasetDir) -> Path | None:
    """The folder `mapping` of the development kit."""
    if found := place.base("mapping/train_rand.txt", "devkit", "devkit_object", "kitti", "kitti/devkit", "kitti/devkit_object"):
        return found / "mapping"
    if archive := place.find(KIT, f"kitti/{KIT}"):
        members = {"mapping/train_rand.txt", "mapping/train_mapping.txt"}
        return unpack_archives(place, [archive], members.__contains__, "vtab-kitti-mapping") / "mapping"
    return None


# Which frame belongs to which split -------------------------------------------------------------------------------------------


def _split_by_drive(names: list[str], mapping: Path) -> dict[str, NDArray[np.int64]]:
    drives = _read_drives(mapping)
    if any(int(name) >= len(drives) for name in names):
        raise VitreousError(f"{mapping}: tells the drives of {len(drives):,} frames, not of {names[-1]}; not this set's kit")
    every = sorted(set(drives))
    count = max(1, len(every) * _SHARE // 100)
    if len(every) <= 2 * count:
        raise VitreousError(f"{mapping}: {len(every)} drives are too few to be split; replace it by the original")
    drawing = np.random.RandomState(_SEED)  # numpy keeps this generator's numbers the same for good
    test = set(drawing.choice(every, count, replace=False).tolist())
    validation = set(drawing.choice(sorted(set(every) - test), count, replace=False).tolist())
    own = [drives[int(name)] for name in names]
    kinds = np.array(["test" if drive in test else "validation" if drive in validation else "train" for drive in own])
    return {split: np.flatnonzero(kinds == split) for split in ("train", "validation", "test")}


def _read_drives(mapping: Path) -> list[str]:
    """The drive of each frame: `train_rand` has, for frame after frame, a line number of `train_mapping`, from 1."""
    lines = text_lines(mapping / "train_mapping.txt")
    source = mapping / "train_rand.txt"
    try:
        numbers = [int(word) for word in "".join(text_lines(source)).split(",")]
        if min(numbers) < 1:
            raise IndexError
        return [lines[number - 1].split()[1] for number in numbers]
    except (ValueError, IndexError):
        raise VitreousError(
            f"{source}: does not number the lines of train_mapping.txt; replace both by the originals"
        ) from None


def _split_by_frame(names: list[str]) -> dict[str, NDArray[np.int64]]:
    """Shares as the drives have them: 6,347, 423 and 711 frames."""
    order = sort_as_tfds("train", [f"{name}.png" for name in names])
    first, second = len(order) * 6347 // 7481, len(order) * 6770 // 7481
    return dict(zip(("train", "validation", "test"), np.split(order, [first, second]), strict=True))
