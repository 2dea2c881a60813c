"""Tar shards in the webdataset layout, read as a stream: nothing is unpacked, and nothing but one sample is held in memory.

    train-000000.tar:  cat/1.jpg  cat/1.cls  dog/7.jpg  dog/7.cls ...

Consecutive members with the same key (the name up to the first dot after the last slash) are one sample: an image, and its
labels in `.cls` (class numbers) or in `.json` ("label", "labels" or "cls": numbers or names). Shards are named by a path, a
glob, a brace range or a folder, here or at any address that fsspec can open; http(s) is read with the standard library.

Class names, splits and counts come from the `index.json` beside the shards that `vitreous shard` writes. For shards of others
`{"classes": ["cat", "dog"]}` is enough. Without one the shards are read through once for their labels, unless they are far
away and large, and what was found is cached; numbered classes are then called "0", "1", ... up to the highest.

A read that fails is tried again from the byte where it stopped, so no sample is lost or given twice. What tarfile takes for
an end of the archive, a bad header or a missing end mark, is a broken shard here: samples must not vanish unnoticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import cache_dir, write_text
from vitreous.core.untrusted_json import read_json
from vitreous.data.shards.byte_stream import (
    Fault,
    RemoteBytes,
    base_name,
    is_http,
    is_remote,
    open_filesystem,
    printable_address,
)
from vitreous.data.shards.index import INDEX, Index, assign_splits, distinct_names, find_shards, read_index_beside
from vitreous.data.shards.samples import Label, read_samples
from vitreous.data.source import Dataset, Item, Policy, Skipped, Stream

SCAN_BYTES = 1 << 30  # more than this is not fetched only to learn which labels there are
MOST_CLASSES = 1_000_000


@dataclass(eq=False, repr=False)
class Shards(Stream):
    """The shards of one split. Holds no open file: cheap to hand to a worker process, whose `skipped` is its own."""

    where: str
    split: str
    classes: tuple[str, ...]
    shards: tuple[str, ...]  # paths or addresses
    names: tuple[str, ...]  # of the shards, as ids begin
    lengths: tuple[int, ...] | None = None  # how many items each shard has, where an index says so
    bad_shards: Policy = "stop"
    skipped: list[Skipped] = field(default_factory=list)

    def shard_lengths(self) -> tuple[int, ...] | None:
        return self.lengths

    def read(self, shard: int) -> Iterator[Item]:
        place, name = printable_address(self.shards[shard]), self.names[shard]
        numbers = {label: number for number, label in enumerate(self.classes)}
        delivered = without_image = 0
        bad: list[str] = []
        try:
            for sample in read_samples(self.shards[shard]):
                if sample.image is None and not sample.fault:
                    if sample.texts and self.bad_shards == "stop":
                        raise Fault(f"{sample.key} has labels and no image; members of one key must follow each other")
                    without_image += 1
                    continue
                try:
                    item = sample.item(name, place, numbers, len(self.classes))
                except Fault as fault:
                    if self.bad_shards == "stop":
                        raise
                    bad.append(str(fault))
                    continue
                delivered += 1
                yield item
            found = delivered + len(bad)
            if without_image and not found:
                raise Fault("holds no images")
            if self.lengths is not None and found != self.lengths[shard]:
                raise Fault(f"{found:,} samples, where {INDEX} says {self.lengths[shard]:,}")
        except Fault as fault:
            if self.bad_shards == "stop":
                raise _shard_error(place, fault) from fault
            self.skipped.append(Skipped(place, str(fault), delivered))
        if bad:
            self.skipped.append(Skipped(place, f"{len(bad):,} bad samples ({bad[0]})", delivered))
        if without_image and delivered:
            self.skipped.append(Skipped(place, f"{without_image:,} samples without an image", delivered))


def open_shards(pattern: str, *, bad_shards: Policy = "stop") -> Dataset:
    """The data set that a path, a glob, a brace range, a folder or an address of shards names."""
    where, shards = printable_address(pattern), find_shards(pattern)
    if bad_shards == "stop":
        for shard in shards:
            if not is_remote(shard) and not Path(shard).is_file():
                raise VitreousError(f"{shard}: no such shard; fetch it, or name only those that are there")
    index = read_index_beside(shards)
    return open_shard_lists(where, assign_splits(where, shards, index), index, bad_shards)


def open_shard_lists(where: str, splits: Mapping[str, list[str]], index: Index | None, bad_shards: Policy) -> Dataset:
    """The data set that has these shards in each of its splits."""
    shards = [shard for members in splits.values() for shard in members]
    notes: tuple[str, ...] = ()
    lengths: dict[str, int | None]
    if index is not None:
        classes, own_classes = index.classes, index.own_classes
        lengths = {shard: index.lengths.get(base_name(shard)) for shard in shards}
        unlisted = list(lengths.values()).count(None)
        if index.lengths and unlisted:
            notes = (f"{INDEX} does not list {unlisted:,} of {len(shards):,} shards",)
    else:
        contents = dict(zip(shards, _scan_shards(where, shards, bad_shards), strict=True))
        labels = {split: {label for shard in members for label in contents[shard][1]} for split, members in splits.items()}
        classes, named = _collect_classes(where, set().union(*labels.values()))
        # Where the data says numbers, they mean the same in every split.
        own_classes = {split: tuple(name for name in classes if name in own) for split, own in labels.items() if named}
        lengths = {shard: length for shard, (length, _) in contents.items()}
        total = "" if None in lengths.values() else f"{sum(filter(None, lengths.values())):,} samples, "
        notes = (f"no {INDEX} beside the shards: they were read through for their labels ({total}{len(classes):,} classes)",)
    names = dict(zip(shards, distinct_names(shards), strict=True))
    known = {shard: length for shard, length in lengths.items() if length is not None}
    streams = {
        split: Shards(
            where=where,
            split=split,
            classes=classes,
            shards=tuple(members),
            names=tuple(names[shard] for shard in members),
            lengths=tuple(known[shard] for shard in members) if len(known) == len(lengths) else None,
            bad_shards=bad_shards,
        )
        for split, members in splits.items()
    }
    return Dataset(where, classes, streams, notes, own_classes=own_classes)


def _shard_error(place: str, fault: Fault) -> VitreousError:
    return VitreousError(f"{place}: {one_line(fault)}; fetch or make this shard again, or leave it out")


# Shards without an index --------------------------------------------------------------------------------------------------


Scanned: TypeAlias = tuple[int | None, list[Label]]
"""How many samples a shard has, None where it is broken, and the labels in it."""


def _scan_shards(where: str, shards: Sequence[str], bad_shards: Policy) -> list[Scanned]:
    """What the labels in each shard are, as far as a broken one goes. Cached while no shard changes."""
    total, marks = 0, []
    for shard in shards:
        size, mark = _size_and_mark(shard)
        marks.append((printable_address(shard), size, mark))
        total += (SCAN_BYTES if size is None else size) if is_remote(shard) else 0
        if total > SCAN_BYTES:
            raise VitreousError(
                f"{where}: no {INDEX} beside these shards, and they are too large to fetch only for their labels; "
                f'put an {INDEX} with {{"classes": ["cat", "dog"]}} (names in their order) there'
            )
    key = hashlib.sha256(json.dumps([2, marks]).encode(errors="surrogatepass")).hexdigest()
    cached = cache_dir() / "shards" / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return [(length, labels) for length, labels in read_json(cached, most=1 << 30)]
    contents = [_scan_shard(shard, bad_shards) for shard in shards]
    if all(length is not None for length, _ in contents) and all(mark for _, _, mark in marks):
        with contextlib.suppress(VitreousError):  # a cache that cannot be written costs time and nothing else
            write_text(cached, json.dumps(contents))
    return contents


def _scan_shard(shard: str, bad_shards: Policy) -> Scanned:
    labels: set[Label] = set()
    length = 0
    try:
        for sample in read_samples(shard, pixels=False):
            length += sample.image is not None or bool(sample.fault)
            try:
                labels.update(sample.labels())
            except Fault:
                if bad_shards == "stop":
                    raise
    except Fault as fault:
        if bad_shards == "stop":
            raise _shard_error(printable_address(shard), fault) from fault
        return None, list(labels)
    return length, list(labels)


def _collect_classes(where: str, labels: set[Label]) -> tuple[tuple[str, ...], bool]:
    """The classes, and whether the data itself names them."""
    names = sorted(label for label in labels if isinstance(label, str))
    numbers = [label for label in labels if isinstance(label, int)]
    if names and numbers:
        raise VitreousError(f"{where}: some labels are numbers ({numbers[0]}), some names ({names[0]!r}); use one kind")
    highest = max(numbers, default=-1)
    if highest >= MOST_CLASSES:
        raise VitreousError(
            f"{where}: label {highest:,} is not a class number; put an {INDEX} with the classes beside the shards"
        )
    return (tuple(names), True) if names else (tuple(str(number) for number in range(highest + 1)), False)


def _size_and_mark(shard: str) -> tuple[int | None, str | None]:
    """The size, and what changes when the content does; None where that is not known."""
    try:
        if not is_remote(shard):
            found = Path(shard).stat()
            return found.st_size, f"{Path(shard).resolve()} {found.st_mtime_ns}"
        if is_http(shard):
            with RemoteBytes(shard) as file:
                file.connect()
                return file.size, file.mark
        files, path = open_filesystem(shard)
        return files.size(path), str(files.ukey(path))
    except VitreousError:
        raise
    except Exception:  # a missing or broken one is named when it is read
        return 0, None
