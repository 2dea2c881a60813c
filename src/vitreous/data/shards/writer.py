"""Write a data set as tar shards in the webdataset layout.

    out/train-000000.tar ...     SPLIT-NUMBER.tar: the images' own bytes, untouched, each with its class numbers in `.cls`
    out/index.json               classes, splits, and for each shard its count, bytes and SHA-256
    out/bad_images.jsonl         what was left out, where that was allowed and there was something

The items are written in a shuffled order, because a stream can only be shuffled within a window afterwards: shards sorted by
class would give batches of one class. The order depends on the seed alone, and so do the bytes: times and owners are zero.
"""

from __future__ import annotations

import contextlib
import glob
import io
import itertools
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_folder
from vitreous.core.hashing import hash_file
from vitreous.core.output_dir import check_outside, find_data_folder
from vitreous.core.progress import Advance, progress_bar
from vitreous.core.table import table
from vitreous.data import sampling as order
from vitreous.data.bad_images import NAME as BAD_IMAGES
from vitreous.data.bad_images import write_bad_images
from vitreous.data.conventions import SUFFIXES
from vitreous.data.open import open_data
from vitreous.data.shards.index import INDEX
from vitreous.data.shards.samples import MEMBER_BYTES, UNKNOWN_SUFFIX
from vitreous.data.source import Dataset, Item, Policy, Source, Stream
from vitreous.data.transforms.decode import BadImage, decode, from_array, open_image

SHARD_BYTES = 256_000_000  # large enough that opening one costs nothing, small enough to have many for many workers
_NAMED = 20  # bad images named in an error; those who have more need the list, which `skip` writes
_FORMATS = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif", "JPEG2000": ".jp2"}  # where the suffix is not the format's name


@dataclass(frozen=True)
class ShardEntry:
    name: str
    split: str
    count: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardReport:
    out: str
    classes: tuple[str, ...]
    shards: tuple[ShardEntry, ...]
    bad: tuple[BadImage, ...]
    notes: tuple[str, ...]
    exit_code: int = 0

    def text(self) -> str:
        rows = [
            (split, total["shards"], total["count"], f"{total['bytes'] / 1e6:,.1f} MB")
            for split, total in sum_splits(self.shards).items()
        ]
        return f"{self.out}: {len(self.classes):,} classes\n" + table(("split", "shards", "images", "size"), rows)

    def records(self) -> Iterator[dict[str, Any]]:
        for split, total in sum_splits(self.shards).items():
            yield {
                "out": self.out,
                "classes": len(self.classes),
                "split": split,
                "shards": total["shards"],
                "images": total["count"],
                "bytes": total["bytes"],
                "left_out": len(self.bad),
            }


def sum_splits(shards: Sequence[ShardEntry]) -> dict[str, dict[str, int]]:
    """Shards, images and bytes of each split."""
    own = {split: [shard for shard in shards if shard.split == split] for split in dict.fromkeys(s.split for s in shards)}
    return {
        split: {"shards": len(some), "count": sum(s.count for s in some), "bytes": sum(s.bytes for s in some)}
        for split, some in own.items()
    }


def shard_data(data: str, out: Path, *, shard_bytes: int, seed: int, bad_images: Policy, full_check: bool) -> ShardReport:
    """`vitreous shard`: DATA, written as shards; notes on what it left out come with the result."""
    check_outside(out, find_data_folder(data))
    check_free(out)  # before DATA is opened, which may take a while
    dataset = open_data(data)
    with progress_bar(f"writing {out}", dataset.count()) as advance:
        report = write_shards(
            dataset,
            out,
            shard_bytes=shard_bytes,
            seed=seed,
            bad_images=bad_images,
            full_check=full_check,
            progress=advance,
        )
    notes = [*dataset.summary(), *report.notes]
    if report.bad:
        notes.append(f"{len(report.bad):,} bad images were left out; {out}/{BAD_IMAGES} lists them")
    return replace(report, notes=tuple(notes))


def write_shards(
    dataset: Dataset,
    out: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    shuffle: bool = True,
    bad_images: Policy = "stop",
    full_check: bool = False,
    progress: Advance = lambda more: None,
) -> ShardReport:
    """Write every split to the folder `out`, which must be new or empty: whole, or not at all.

    Each image's header is read first; with `full_check`, all its pixels. `progress` is called with the number of items done.
    """
    if shard_bytes < 1:
        raise VitreousError(f"shards of {shard_bytes} bytes: give a size such as 256MB")
    for split in dataset.splits:
        if not re.fullmatch(r"[A-Za-z0-9_]+", split):
            raise VitreousError(f"{dataset.where}: split {split!r} cannot be part of a file name; rename it")
    target = out.resolve()  # a link to a folder, or `.`, stands for the folder itself
    check_free(out)
    parts = sorted(target.parent.glob(f".{glob.escape(target.name)}.*.part"))
    notes = [f"{part}: left by a run that was killed, or in use by one that still runs; if killed, delete it" for part in parts]
    shards: list[ShardEntry] = []
    bad: list[BadImage] = []
    with atomic_folder(target, replace=False) as folder:
        for split, source in dataset.splits.items():
            if shuffle and isinstance(source, Stream):
                notes.append(f"{split}: a stream, so its items keep their order within each shard that was read")
            with _ShardWriter(folder, split, shard_bytes) as writer:
                for place, read in _iterate_items(source, order.derive_key("shards", seed, split) if shuffle else None):
                    try:
                        item = read()
                        content, suffix = _encode_image(item, full_check)
                        if not bad or bad_images == "skip":  # else only the other bad images are still looked for
                            writer.add(_make_key(item.id), suffix, content, item.labels)
                    except BadImage as error:
                        bad.append(BadImage(place, error.kind, error.why))
                        if bad_images == "stop" and len(bad) >= _NAMED:
                            raise _bad_images_error(dataset.where, bad) from error
                    progress(1)
            shards += writer.done
        if bad and bad_images == "stop":
            raise _bad_images_error(dataset.where, bad)
        if not shards:
            raise VitreousError(f"{dataset.where}: not one image to write" + (f"; the first: {bad[0].why}" if bad else ""))
        if bad:
            write_bad_images(folder / BAD_IMAGES, bad)
        (folder / INDEX).write_text(_format_index(dataset, shards, seed if shuffle else None), encoding="utf-8")
    return ShardReport(str(out), dataset.classes, tuple(shards), tuple(bad), tuple(notes))


def check_free(out: Path) -> None:
    """Whatever lies at `out` would be replaced, so nothing may lie there."""
    if out.is_mount():
        raise VitreousError(f"{out}: is a mount point, which cannot be replaced; choose a folder in it")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise VitreousError(f"{out}: is there already; choose another place, or delete it first")


def _bad_images_error(where: str, bad: list[BadImage]) -> VitreousError:
    named = "; ".join(map(str, bad))
    many = f"{_NAMED} bad images and perhaps more" if len(bad) >= _NAMED else f"{len(bad)} bad images"
    return VitreousError(f"{where}: {many}, nothing was written ({named}); with --bad-images skip they are left out")


def _format_index(dataset: Dataset, shards: list[ShardEntry], seed: int | None) -> str:
    splits = sum_splits(shards)
    document = {
        "format": "vitreous shards 1",
        "classes": list(dataset.classes),
        "own_classes": {split: list(names) for split, names in dataset.own_classes.items() if split in splits},
        "seed": seed,
        "splits": splits,
        "shards": [asdict(shard) for shard in shards],
    }
    return json.dumps(document, indent=1) + "\n"


# What is written ------------------------------------------------------------------------------------------------------------


def _iterate_items(source: Source | Stream, seed: int | None) -> Iterator[tuple[str, Callable[[], Item]]]:
    """The place of each item, and what reads it; in the order of the seed, if there is one."""
    count = len(source.shards if isinstance(source, Stream) else source)
    numbers = np.arange(count) if seed is None else order.permute(np.arange(count), count, seed, 0)
    for number in numbers.tolist():
        if isinstance(source, Stream):
            yield from ((item.place, partial(_same, item)) for item in source.read(number))
        else:
            yield source.path(number) or source.place(number), partial(source.__getitem__, number)


def _same(item: Item) -> Item:
    return item


def _encode_image(item: Item, full_check: bool) -> tuple[bytes, str]:
    """The bytes to write, which are those that came wherever some did, and a suffix that readers know."""
    content, place = item.content, item.place
    if isinstance(content, np.ndarray):
        buffer = io.BytesIO()
        from_array(content, 1 if content.ndim == 2 or content.shape[2] == 1 else 3).save(buffer, "PNG")
        return buffer.getvalue(), ".png"
    if len(content) > MEMBER_BYTES:
        raise BadImage(place, "too-large", f"{len(content):,} bytes; at most {MEMBER_BYTES:,} can be read from a shard")
    with open_image(content, place) as image:
        form = image.format or ""
    if full_check:
        decode(content, place=place)
    choices = (Path(item.id).suffix.lower(), _FORMATS.get(form, f".{form.lower()}"))
    return content, next((suffix for suffix in choices if suffix in SUFFIXES), UNKNOWN_SUFFIX)


def _make_key(name: str) -> str:
    """A name for all members of a sample: the item's own, without what ends a key (a dot) or leads out of a folder."""
    text = re.sub(r"[^\w /.,;=@()\[\]{}~!#$%&'+^-]", "_", name.encode(errors="replace").decode())
    parts = [part for part in text.split("/") if part not in ("", ".", "..")] or ["_"]
    stem, dot, suffix = parts[-1].rpartition(".")
    last = stem if dot and f".{suffix.lower()}" in SUFFIXES and stem else parts[-1]
    return "/".join([*parts[:-1], last.replace(".", "_")])


# Shards ---------------------------------------------------------------------------------------------------------------------


class _ShardWriter:
    """Fills one shard after the other; a new one begins where the next sample would make it larger than it may be."""

    def __init__(self, folder: Path, split: str, shard_bytes: int) -> None:
        self._folder, self._split, self._limit = folder, split, shard_bytes
        self._tar: tarfile.TarFile | None = None
        self._keys: set[str] = set()
        self.done: list[ShardEntry] = []

    def __enter__(self) -> _ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        elif self._tar is not None and self._tar.fileobj is not None:
            with contextlib.suppress(OSError):  # of a full disk; the folder is about to be removed
                self._tar.fileobj.close()

    def add(self, key: str, suffix: str, image: bytes, labels: tuple[int, ...]) -> None:
        members = [(suffix, image)]
        if labels:
            members.append((".cls", " ".join(map(str, labels)).encode()))
        size = sum(tarfile.BLOCKSIZE + len(content) + -len(content) % tarfile.BLOCKSIZE for _, content in members)
        if self._tar is not None and self._tar.offset + size > self._limit:
            self._finish()
        if self._tar is None:
            self._tar = tarfile.open(self._path, "w", format=tarfile.PAX_FORMAT, encoding="utf-8")  # noqa: SIM115
        # Two names may differ in their suffix only, or in what a key cannot hold.
        candidates = itertools.chain([key], (f"{key}~{times}" for times in itertools.count(2)))
        unique = next(candidate for candidate in candidates if candidate not in self._keys)
        self._keys.add(unique)
        for ending, content in members:
            # Its time and owners are zero, or equal data would give unequal bytes.
            header = tarfile.TarInfo(unique + ending)
            header.size, header.mode = len(content), 0o644
            self._tar.addfile(header, io.BytesIO(content))

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._split}-{len(self.done):06d}.tar"

    def _finish(self) -> None:
        if self._tar is None:
            return
        self._tar.close()
        path, count = self._path, len(self._keys)
        self.done.append(ShardEntry(path.name, self._split, count, path.stat().st_size, hash_file(path)))
        self._tar, self._keys = None, set()
