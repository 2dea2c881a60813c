"""The interface of every data set: items with a stable id, labels and content.

A `Source` gives any item by its number; a `Stream` gives the items of a shard one after another, for data that is too
large or too far away to be addressed one by one. A `Dataset` holds one of them for each split, over one list of classes.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError, first_few, one_line
from vitreous.data.policy import Policy as Policy
from vitreous.data.transforms.image_formats import describe_left_out

Content: TypeAlias = bytes | NDArray[np.uint8]
"""An encoded image file, or pixels: height x width (grey) or height x width x 3."""

SPLITS = ("train", "validation", "test")
ALL = "all"  # the one split of a data set that has none


@dataclass(frozen=True, eq=False)
class Item:
    id: str  # the same wherever the data lies: a path inside the data set, never an absolute one
    labels: tuple[int, ...]  # indices into the classes; usually one, none where nothing is known
    content: Content = field(repr=False)
    place: str  # for people: the file, or the shard and the member in it


class Source(ABC):
    """Labelled images by number. Cheap to hand to another process: the index is mapped from disk, not copied."""

    where: str  # what the user typed
    split: str
    classes: tuple[str, ...]
    encoded: bool = True  # whether the content is files, which may be broken; pixels are not

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.where}, {_images(self)}, {len(self.classes):,} classes>"

    @abstractmethod
    def __len__(self) -> int: ...

    def count(self) -> int:
        return len(self)

    @abstractmethod
    def id(self, index: int) -> str: ...

    @abstractmethod
    def labels(self, index: int) -> tuple[int, ...]: ...

    @abstractmethod
    def read(self, index: int) -> Content:
        """The item's content; a VitreousError that names the item if it cannot be had."""

    def place(self, index: int) -> str:
        return f"{self.where}: {self.id(index)}"

    def path(self, index: int) -> str | None:
        """The file that holds this item and nothing else, where there is one."""
        return None

    def __getitem__(self, index: int) -> Item:
        return Item(self.id(index), self.labels(index), self.read(index), self.place(index))

    def items(self) -> Iterator[Item]:
        return (self[index] for index in range(len(self)))

    def targets(self) -> NDArray[np.int64]:
        """The first label of every item, -1 where it has none."""
        return np.fromiter((self.labels(i)[0] if self.labels(i) else -1 for i in range(len(self))), np.int64, len(self))

    def counts(self) -> NDArray[np.int64]:
        """How many items each class has; an item with several labels counts for each."""
        labels = itertools.chain.from_iterable(map(self.labels, range(len(self))))
        return np.bincount(np.fromiter(labels, np.int64), minlength=len(self.classes))

    def fingerprint(self) -> str:
        """Changes when the items, their labels or the classes do. Content is not read."""
        digest = hashlib.sha256("\0".join((*self.classes, "")).encode(errors="surrogateescape"))
        for index in range(len(self)):
            digest.update(f"{self.id(index)}\0{self.labels(index)}\0".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def subset(self, indices: Sequence[int] | NDArray[np.int64], split: str | None = None) -> Source:
        return Subset(self, np.asarray(indices, np.int64), split or self.split)


class View(Source):
    """Another source, seen in another way. As it stands, in the same way."""

    def __init__(self, parent: Source) -> None:
        self.parent, self.split, self.encoded = parent, parent.split, parent.encoded
        self.where, self.classes = parent.where, parent.classes

    def number(self, index: int) -> int:
        """Which item of the parent's this is."""
        return index

    def __len__(self) -> int:
        return len(self.parent)

    def id(self, index: int) -> str:
        return self.parent.id(self.number(index))

    def labels(self, index: int) -> tuple[int, ...]:
        return self.parent.labels(self.number(index))

    def read(self, index: int) -> Content:
        return self.parent.read(self.number(index))

    def place(self, index: int) -> str:
        return self.parent.place(self.number(index))

    def path(self, index: int) -> str | None:
        return self.parent.path(self.number(index))


class Subset(View):
    """Some items of another source, in the order given."""

    def __init__(self, parent: Source, indices: NDArray[np.int64], split: str) -> None:
        super().__init__(parent)
        self.indices, self.split = indices, split

    def __len__(self) -> int:
        return len(self.indices)

    def number(self, index: int) -> int:
        return int(self.indices[index])

    def targets(self) -> NDArray[np.int64]:
        return self.parent.targets()[self.indices]


class Skipped(NamedTuple):
    """A shard, or a part of one, that was not delivered."""

    shard: str
    reason: str
    delivered: int  # how many items it gave all the same


class Stream(ABC):
    """Labelled images, shard after shard. A shard can be read again, from its beginning only."""

    where: str
    split: str
    classes: tuple[str, ...]
    shards: tuple[str, ...]
    skipped: list[Skipped]  # what reading has left out so far, where that is allowed

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.where}, {_images(self)}, {len(self.shards):,} shards, {len(self.classes):,} classes>"
        )

    @abstractmethod
    def read(self, shard: int) -> Iterator[Item]:
        """The items of one shard, in their order; a VitreousError that names the shard if it is broken."""

    def items(self) -> Iterator[Item]:
        for shard in range(len(self.shards)):
            yield from self.read(shard)

    def shard_lengths(self) -> tuple[int, ...] | None:
        """How many items each shard has, where that is known without reading everything."""
        return None

    def count(self) -> int | None:
        """How many items there are, where that is known without reading everything."""
        lengths = self.shard_lengths()
        return None if lengths is None else sum(lengths)


class StreamView(Stream):
    """Another stream, seen in another way. As it stands, in the same way."""

    def __init__(self, parent: Stream) -> None:
        self.parent, self.where, self.split, self.classes = parent, parent.where, parent.split, parent.classes
        self.shards, self.skipped = parent.shards, parent.skipped

    def read(self, shard: int) -> Iterator[Item]:
        return self.parent.read(shard)

    def shard_lengths(self) -> tuple[int, ...] | None:
        return self.parent.shard_lengths()


def _images(source: Source | Stream) -> str:
    count = source.count()
    return f"{source.split}: {'images' if count is None else f'{count:,} image' + 's' * (count != 1)}"


EMPTY_SPLIT = "a split without images"
NOT_BY_NAME = "not an image, by its name"


class LeftOut(NamedTuple):
    """Something that lies in a folder and is not an item of the data set."""

    path: str
    why: str
    kind: Literal["not-an-image", "symlink-loop", "unreadable", "empty-class", "left-out"]


@dataclass(frozen=True, repr=False)
class Dataset:
    """What DATA on the command line becomes."""

    where: str
    classes: tuple[str, ...]
    splits: Mapping[str, Source | Stream]
    notes: tuple[str, ...] = ()  # what was assumed or left out, printed by the commands
    left_out: tuple[LeftOut, ...] = ()
    left_out_count: int = 0  # the first of them are kept by name
    own_classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the classes that each split really has

    def describe(self) -> str:
        """How it was read, in a line: the classes by number and first names, the images of each split."""
        classes = f"{len(self.classes):,} class{'es' * (len(self.classes) != 1)}" if self.classes else "no classes"
        named = f" ({first_few([one_line(name, 40) for name in self.classes], 5)})" if self.classes else ""
        return f"{self.where}: {classes}{named}; {', '.join(map(_images, self.splits.values()))}"

    def __repr__(self) -> str:
        return f"<Dataset {self.describe()}>"

    def summary(self) -> tuple[str, ...]:
        """How it was read, the notes, and how much was left out."""
        return (self.describe(), *self.notes, *self._left_out_note())

    def _left_out_note(self) -> tuple[str, ...]:
        if not self.left_out:
            return ()
        files = [entry.path for entry in self.left_out if entry.why == NOT_BY_NAME]
        others = [entry for entry in self.left_out if entry.why != NOT_BY_NAME]
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        parts = [f"left out {first.path} ({first.why}){more}" for first in others[:1]]
        if files:
            unnamed = max(self.left_out_count - len(self.left_out), 0)  # beyond those that are kept by name
            parts.append(describe_left_out(files, len(files) + unnamed))
        return (f"{self.where}: {'; '.join(parts)}; `vitreous doctor` lists them",)

    def empty_splits(self) -> tuple[str, ...]:
        """Those that have a folder and no image. Who measures must not turn to another split because of it."""
        return tuple(entry.path for entry in self.left_out if entry.why == EMPTY_SPLIT)

    def count(self) -> int | None:
        """How many items there are in all, where that is known without reading everything."""
        counts = [source.count() for source in self.splits.values()]
        return None if None in counts else sum(filter(None, counts))

    def differences_from(self, title: str, published: Mapping[str, int]) -> tuple[str, ...]:
        """Notes on splits whose size differs from the published one: results on them are not comparable."""
        counts = {split: self.splits[split].count() if split in self.splits else 0 for split in published}
        return tuple(
            f"{self.where}: {split} has {count:,} images; {title} has {published[split]:,}"
            for split, count in counts.items()
            if count not in (None, published[split])
        )

    def only(self, split: str) -> Dataset:
        """The same without its other splits."""
        left_out = tuple(entry for entry in self.left_out if entry.why != EMPTY_SPLIT)  # another one, then
        return replace(
            self,
            where=f"{self.where}:{split}",
            splits={split: self.source(split)},
            own_classes={name: classes for name, classes in self.own_classes.items() if name == split},
            left_out=left_out,
            left_out_count=self.left_out_count - (len(self.left_out) - len(left_out)),
        )

    def source(self, split: str) -> Source | Stream:
        if split not in self.splits:
            what = "are no images in its" if split in self.empty_splits() else "is no"
            raise VitreousError(f"{self.where}: there {what} split {split!r}; it has {', '.join(self.splits)}")
        return self.splits[split]
