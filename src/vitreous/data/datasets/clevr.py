"""CLEVR: rendered scenes of three to ten objects, and files that describe where each object is. CLEVR_v1.0.zip or unpacked.

VTAB takes 800 of the first 90 % of the training scenes in the order of TensorFlow Datasets, 200 of the others, and tests
on the validation scenes, because those for testing have no descriptions. The descriptions are hundreds of megabytes of
JSON: they are read scene by scene, once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.progress import progress_bar
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.image_files import Listed, unpack_archives
from vitreous.data.datasets.pixel_arrays import load_array, save_arrays
from vitreous.data.datasets.tfds_order import sort_as_tfds
from vitreous.data.datasets.vtab_parts import Parts, choose_examples, image_parts
from vitreous.data.datasets.vtab_rules import bin_by_thresholds, check_labels
from vitreous.data.datasets.vtab_tasks import CLEVR_DISTANCES, CLEVR_FEWEST, VtabTask

FOLDER, ARCHIVE = "CLEVR_v1.0", "CLEVR_v1.0.zip"

_SPLITS = {"train": "train", "test": "val"}  # ours, and theirs
_CHUNK, _LARGEST = 1 << 20, 1 << 24  # characters read at a time, and of one scene at most


def open_clevr(place: DatasetDir, task: VtabTask) -> Parts:
    base, archive = _find_scenes(place)
    scenes = {split: base / f"scenes/CLEVR_{name}_scenes.json" for split, name in _SPLITS.items()}
    for path in scenes.values():
        if not path.is_file():
            raise VitreousError(f"{place.where}: no {path}; unpack the whole of {ARCHIVE}")
    folder = prepare_once("vtab-clevr", list(scenes.values()), lambda made: _summarise_scenes(scenes, made))
    names = {split: load_array(folder, f"{split}-names").tolist() for split in scenes}
    labels = {split: _compute_labels(task, scenes[split], folder, split, names[split]) for split in scenes}
    train, test = sort_as_tfds("train", names["train"]), sort_as_tfds("validation", names["test"])
    edge = len(train) * 9 // 10
    part = choose_examples(train[:edge], train[edge:], test, place.where)
    chosen = {"train": part.training, "test": part.test}
    listed: dict[str, Listed] = {
        split: [(f"images/{_SPLITS[split]}/{names[split][n]}", int(labels[split][n])) for n in numbers.tolist()]
        for split, numbers in chosen.items()
    }
    if archive is not None:
        # The 16,000 images that are used, of 100,000.
        used = {f"{FOLDER}/{path}" for own in listed.values() for path, _ in own}
        base = unpack_archives(place, [archive], used.__contains__, "vtab-clevr-images") / FOLDER
    return image_parts(place, base, task, listed, len(part.train))


def _find_scenes(place: DatasetDir) -> tuple[Path, Path | None]:
    """The folder with `scenes` in it, and the archive if the images are still in one."""
    if base := place.base("scenes/CLEVR_train_scenes.json", FOLDER):
        return base, None
    archive = place.need(ARCHIVE)
    members = {f"{FOLDER}/scenes/CLEVR_{name}_scenes.json" for name in _SPLITS.values()}
    return unpack_archives(place, [archive], members.__contains__, "vtab-clevr-scenes") / FOLDER, archive


def _compute_labels(task: VtabTask, path: Path, folder: Path, split: str, names: list[str]) -> NDArray[np.int64]:
    if task.name == "clevr-count":
        labels = load_array(folder, f"{split}-counts") - CLEVR_FEWEST
    else:
        labels = bin_by_thresholds(load_array(folder, f"{split}-closest"), CLEVR_DISTANCES)
    return check_labels(str(path), names, labels, task.classes)


# Descriptions -----------------------------------------------------------------------------------------------------------------


def _summarise_scenes(scenes: dict[str, Path], folder: Path) -> None:
    for split, path in scenes.items():
        with progress_bar(f"reading {path.name}", None) as advance:
            rows = []
            for number, scene in enumerate(read_scenes(path)):
                rows.append(_parse_scene(path, number, scene))
                advance(1)
        names, counts, closest = zip(*rows, strict=True) if rows else ((), (), ())
        if len(set(names)) != len(names):
            raise VitreousError(f"{path}: describes an image twice; another file than the original")
        facts = {"names": np.array(names, str), "counts": np.array(counts, np.int64), "closest": np.array(closest, np.float64)}
        save_arrays(folder, {f"{split}-{name}": array for name, array in facts.items()})


def _parse_scene(path: Path, number: int, scene: Any) -> tuple[str, int, float]:
    """The image's name, how many objects there are, and how far the closest is: the third of its pixel coordinates."""
    try:
        name = scene["image_filename"]
        distances = [float(thing["pixel_coords"][2]) for thing in scene["objects"]]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise VitreousError(
            f"{path}: scene {number:,} lacks image_filename or objects with three pixel_coords ({one_line(repr(error))}); "
            f"another file than the original"
        ) from error
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+\.png", name):
        raise VitreousError(f"{path}: scene {number:,} names the image {name!a}; another file than the original")
    return name, len(distances), min(distances, default=float("inf"))


def read_scenes(path: Path) -> Iterator[Any]:
    """One scene after another of `{"info": ..., "scenes": [...]}`, a megabyte of text in memory at a time."""
    decoder, separator = json.JSONDecoder(), re.compile(r"[\s,]*")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_CHUNK)
            begin = re.search(r'"scenes"\s*:\s*\[', text)
            if begin is None:
                raise VitreousError(f"{path}: no list of scenes in it; another file than the original")
            place = begin.end()
            while True:
                place = separator.match(text, place).end()  # type: ignore[union-attr]
                if text[place : place + 1] == "]":
                    return
                try:
                    scene, end = decoder.raw_decode(text, place)
                except (json.JSONDecodeError, RecursionError) as error:
                    more = file.read(_CHUNK)
                    if not more or len(text) - place > _LARGEST:
                        raise VitreousError(f"{path}: broken or truncated ({one_line(error)}); fetch it again") from error
                    text, place = text[place:] + more, 0
                    continue
                yield scene
                place = end
    except (OSError, UnicodeDecodeError) as error:
        raise VitreousError(f"{path}: cannot be read as text ({one_line(error)}); replace it by the original") from error
