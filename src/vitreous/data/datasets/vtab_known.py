"""VTAB-1k's tasks from the original files of known data sets: the benchmark's own images, found by their keys.

The keys and splits are those of TensorFlow Datasets, in whose order the benchmark takes the first 800 and 200 images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.registry import find_dataset
from vitreous.data.datasets.tfds_order import sort_as_tfds
from vitreous.data.datasets.vtab_parts import Parts, choose_examples
from vitreous.data.datasets.vtab_rules import Numbers
from vitreous.data.datasets.vtab_tasks import VtabTask
from vitreous.data.source import ALL, Source
from vitreous.data.sources.file_source import FileSource


@dataclass(frozen=True)
class _Rule:
    key: Callable[[str], str] | None = None  # of an image, from its id; None: its number in the split
    edges: tuple[int, ...] = ()  # percent of `train` at which validation, and test, begin where the set has no such split


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


_RULES = {
    "cifar100": _Rule(edges=(90,)),
    "dtd": _Rule(lambda path: path.removeprefix("images/")),
    "eurosat": _Rule(lambda path: path.replace("/", "_"), edges=(60, 80)),
    "flowers102": _Rule(_file_name),
    "pets": _Rule(_file_name, edges=(80,)),
    "svhn": _Rule(edges=(90,)),
}
KNOWN = tuple(_RULES)


def open_known(place: DatasetDir, task: VtabTask) -> Parts:
    known, rule = find_dataset(task.name), _RULES[task.name]
    # By its own name, so that what is unpacked serves the data set itself, too.
    dataset = known.open(replace(place, name=known.name))
    splits = {"train" if name == ALL else name: split for name, split in dataset.splits.items() if isinstance(split, Source)}
    pool = splits["train"]
    parts = np.split(_sort(rule, "train", pool), [len(pool) * edge // 100 for edge in rule.edges])
    if "validation" in splits:
        parts.append(len(pool) + _sort(rule, "validation", splits["validation"]))
        pool = _join(pool, splits["validation"])
    test = splits["test"] if "test" in splits else pool.subset(parts[2], "test")
    chosen = choose_examples(parts[0], parts[1], np.arange(len(test)), place.where)
    notes = () if ALL in dataset.splits else dataset.notes
    different = dataset.differences_from(f"{known.title} as published", known.images)
    return Parts(pool.subset(chosen.training, "train"), len(chosen.train), test, (*notes, *different))


def _sort(rule: _Rule, split: str, images: Source) -> Numbers:
    key = rule.key
    return sort_as_tfds(split, range(len(images)) if key is None else [key(images.id(n)) for n in range(len(images))])


def _join(train: Source, validation: Source) -> Source:
    """Both as one source: they lie in one table, one behind the other."""
    assert isinstance(train, FileSource)
    assert isinstance(validation, FileSource)
    assert train.table is validation.table
    assert train.stop == validation.start
    return FileSource(train.where, "train", train.classes, train.table, train.start, validation.stop)


def refuse_caltech101(place: DatasetDir, task: VtabTask) -> Parts:
    raise VitreousError(
        f"{place.where}: the original files do not tell which images are VTAB's: 30 of each class were drawn at random in the "
        f"order in which a file system listed them; give {task.folder}/train800.txt, val200.txt and test.txt"
    )
