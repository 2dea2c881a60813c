"""Choose the images of a VTAB-1k task from original files, in the order of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.image_files import Listed, image_dataset
from vitreous.data.datasets.pixel_arrays import MappedArrays, load_array, save_arrays
from vitreous.data.datasets.vtab_rules import Numbers, check_labels
from vitreous.data.datasets.vtab_tasks import TRAIN_IMAGES, VALIDATION_IMAGES, VtabTask
from vitreous.data.source import Dataset, Source


@dataclass(frozen=True)
class ChosenExamples:
    """Which items of an original's splits are used, by number and in the benchmark's order."""

    train: Numbers  # the 800
    validation: Numbers  # the 200
    test: Numbers

    @property
    def training(self) -> Numbers:
        """The 1,000 that the final run is trained on."""
        return np.concatenate((self.train, self.validation))


def choose_examples(train: Numbers, validation: Numbers, test: Numbers, where: str) -> ChosenExamples:
    """The first 800 and 200 of what may be chosen from, and all of the test split."""
    found = ChosenExamples(train[:TRAIN_IMAGES], validation[:VALIDATION_IMAGES], test)
    for name, part in (("train", train), ("validation", validation), ("test", test)):
        if not len(part):
            raise VitreousError(f"{where}: too few images to make the {name} split of VTAB from; fetch the whole set")
    return found


@dataclass(frozen=True)
class Parts:
    """A task from original files: the 800 and the 200 in one source, in this order, and the test split."""

    train: Source
    first: int  # how many of them are the 800
    test: Source
    notes: tuple[str, ...] = ()

    def dataset(self, where: str, sweep: bool) -> Dataset:
        if not sweep:
            return Dataset(where, self.train.classes, {"train": self.train, "test": self.test}, self.notes)
        train = self.train.subset(range(self.first), "train")
        validation = self.train.subset(range(self.first, len(self.train)), "validation")
        return Dataset(where, self.train.classes, {"train": train, "validation": validation}, self.notes)


def image_parts(
    place: DatasetDir, root: Path, task: VtabTask, listed: dict[str, Listed], first: int, notes: tuple[str, ...] = ()
) -> Parts:
    """The same from lists of files, which must be there."""
    found = image_dataset(place, root, task.names, listed).splits
    train, test = found["train"], found["test"]
    assert isinstance(train, Source)
    assert isinstance(test, Source)
    return Parts(train, first, test, notes)


def save_rows(folder: Path, chosen: ChosenExamples, images: NDArray[Any], ids: list[str], facts: NDArray[Any]) -> None:
    """Chosen rows of an array, their ids and annotations, training images first, for `open_rows`."""
    edge = len(chosen.training)
    save_arrays(folder, {"first": np.array(len(chosen.train))})
    for part, own in (("train", slice(edge)), ("test", slice(edge, None))):
        save_arrays(folder, {f"{part}-images": images[own], f"{part}-ids": np.array(ids[own]), f"{part}-facts": facts[own]})


def open_rows(place: DatasetDir, task: VtabTask, folder: Path, label: Callable[[NDArray[Any]], Numbers]) -> Parts:
    """The same from what `save_rows` saved; `label` computes labels from annotations."""
    sources = {}
    for part in ("train", "test"):
        ids = load_array(folder, f"{part}-ids").tolist()
        labels = check_labels(place.where, ids, label(load_array(folder, f"{part}-facts")), task.classes)
        sources[part] = MappedArrays(place.where, part, task.names, folder, labels, ids)
    return Parts(sources["train"], int(load_array(folder, "first")), sources["test"])
