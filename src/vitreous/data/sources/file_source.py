"""A source of image files whose index takes tens of bytes per file, so that it scales to millions.

Python objects would take several hundred bytes each, and every worker process that looks at one would copy its page. Here
file names lie in one array of bytes and everything else in arrays of integers; where they come from a cache they are mapped
from the disk, and all processes share them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError, first_few
from vitreous.data.source import Content, Source
from vitreous.data.sources.label_lists import LabelLists
from vitreous.data.transforms.decode import read_image_file


@dataclass(frozen=True, repr=False)
class FileTable:
    """Files of one root, by number: `folders[folder[i]]` and the i-th name."""

    root: str
    folders: tuple[str, ...]  # relative to the root
    folder: NDArray[np.int32]
    names: NDArray[np.uint8]  # all names, one after another
    ends: NDArray[np.int64]  # where each name ends
    labels: LabelLists
    mapped_from: str | None = None  # the folder whose .npy files these arrays are

    ARRAYS = ("folder", "names", "ends", "label_ids", "label_ends")

    def __repr__(self) -> str:
        return f"<FileTable {self.root}: {len(self):,} files in {len(self.folders):,} folders>"

    def __len__(self) -> int:
        return len(self.ends)

    def __reduce__(self) -> Any:  # pickled as the path of the arrays, not a copy of them
        if self.mapped_from is not None:
            return FileTable.mapped, (Path(self.mapped_from), self.root, self.folders, self.digest())
        return FileTable, (self.root, self.folders, self.folder, self.names, self.ends, self.labels)

    def path(self, index: int) -> str:
        """Relative to the root, with slashes."""
        start = int(self.ends[index - 1]) if index else 0
        name = os.fsdecode(self.names[start : self.ends[index]].tobytes())
        folder = self.folders[self.folder[index]]
        return f"{folder}/{name}" if folder else name

    def save(self, folder: Path) -> None:
        arrays: tuple[NDArray[Any], ...] = (self.folder, self.names, self.ends, self.labels.ids, self.labels.ends)
        for name, array in zip(self.ARRAYS, arrays, strict=True):
            np.save(folder / f"{name}.npy", array)

    @classmethod
    def mapped(cls, folder: Path, root: str, folders: tuple[str, ...], expected: str | None = None) -> FileTable:
        numbers, names, ends, label_ids, label_ends = (_map_array(folder / f"{name}.npy") for name in cls.ARRAYS)
        table = cls(root, folders, numbers, names, ends, LabelLists(label_ids, label_ends), str(folder))
        if len(table.folder) != len(table) or len(table.names) != (table.ends[-1] if len(table) else 0):
            raise ValueError(f"{folder}: the arrays do not belong together")
        if expected is not None and table.digest() != expected:
            raise VitreousError(f"{root}: the folder changed while it was in use; start again")
        return table

    def digest(self) -> str:
        """Of the names: short work even for millions."""
        digest = hashlib.blake2b(self.names.tobytes(), digest_size=16)
        digest.update(self.ends.tobytes())
        return digest.hexdigest()


def _map_array(path: Path) -> NDArray[Any]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array.view(np.ndarray) if array.size else np.zeros(0, array.dtype)  # a plain array: memmap slices are slow


Group: TypeAlias = tuple[str, Sequence[str], Sequence[tuple[int, ...]]]
"""Files of one folder: its path, their names and the labels of each."""


def build_table(root: str, splits: Mapping[str, Iterable[Group]]) -> tuple[FileTable, dict[str, tuple[int, int]]]:
    """One table over the files of all splits, and where each split begins and ends in it."""
    folders: dict[str, int] = {}
    names: list[bytes] = []
    columns: list[tuple[NDArray[Any], ...]] = []
    ranges, count = {}, 0
    for split, groups in splits.items():
        start = count
        for folder, files, labels in groups:
            encoded = [os.fsencode(name) for name in files]
            names.append(b"".join(encoded))
            columns.append(
                (
                    np.full(len(encoded), folders.setdefault(folder, len(folders)), np.int32),
                    np.fromiter(map(len, encoded), np.int64, len(encoded)),
                    np.fromiter(map(len, labels), np.int64, len(encoded)),
                    np.array([label for several in labels for label in several], np.int32),
                )
            )
            count += len(encoded)
        ranges[split] = (start, count)
    empty = (np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32))
    numbers, lengths, label_counts, label_ids = map(np.concatenate, zip(empty, *columns, strict=True))
    joined, label_lists = np.frombuffer(b"".join(names), np.uint8), LabelLists(label_ids, np.cumsum(label_counts))
    return FileTable(root, tuple(folders), numbers, joined, np.cumsum(lengths), label_lists), ranges


class FileSource(Source):
    """The files `start` to `stop` of a table."""

    def __init__(self, where: str, split: str, classes: tuple[str, ...], table: FileTable, start: int, stop: int) -> None:
        self.where, self.split, self.classes = where, split, classes
        self.table, self.start, self.stop = table, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def _number(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.start + index

    def id(self, index: int) -> str:
        return self.table.path(self._number(index))

    def labels(self, index: int) -> tuple[int, ...]:
        return self.table.labels[self._number(index)]

    def path(self, index: int) -> str:
        relative = self.id(index)  # joined by hand: this is called several times for every image of every epoch
        return relative if os.path.isabs(relative) else f"{self.table.root}/{relative}"  # noqa: PTH117

    def place(self, index: int) -> str:
        return self.path(index)

    def read(self, index: int) -> Content:
        return read_image_file(self.path(index), self.path(index))

    def targets(self) -> NDArray[np.int64]:
        return self.table.labels.part(self.start, self.stop).targets()

    def counts(self) -> NDArray[np.int64]:
        return np.bincount(self.table.labels.part(self.start, self.stop).ids, minlength=len(self.classes))

    def fingerprint(self) -> str:
        table, part = self.table, slice(self.start, self.stop)
        first = int(table.ends[self.start - 1]) if self.start else 0
        last = int(table.ends[self.stop - 1]) if self.stop else 0
        digest = hashlib.sha256("\0".join((*self.classes, "", *table.folders)).encode(errors="surrogateescape"))
        digest.update(table.names[first:last].tobytes())
        digest.update((table.ends[part] - first).tobytes())
        digest.update(table.folder[part].tobytes())
        if (np.diff(table.labels.ends, prepend=0) <= 1).all():
            digest.update(self.targets().astype(np.int32).tobytes())
        else:
            digest.update("\0".join(str(self.labels(i)) for i in range(len(self))).encode())
        return digest.hexdigest()


def check_classes(where: str, own: Mapping[str, tuple[str, ...]]) -> None:
    """For training: every split must have the same classes, or its numbers would not mean what they seem to."""
    if different := describe_class_difference(own):
        raise VitreousError(f"{where}: {different}; rename or remove those, or see `vitreous doctor {where}`")


def describe_class_difference(own: Mapping[str, tuple[str, ...]]) -> str:
    """What training refuses: a labelled split whose classes are not those of `train`. Empty where there is none."""
    trained = set(own.get("train", ()))
    for split, classes in own.items() if "train" in own else ():
        unknown, missing = sorted(set(classes) - trained), sorted(trained - set(classes))
        if classes and (unknown or missing):
            parts = [f"only in {split}: {first_few(unknown)}"] * bool(unknown)
            parts += [f"only in train: {first_few(missing)}"] * bool(missing)
            return f"the splits have different classes ({'; '.join(parts)})"
    return ""
