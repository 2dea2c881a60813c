from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from vitreous.commands.types import BadImages
from vitreous.core.files import user_path
from vitreous.core.table import table

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Written:
    """One split: its shards together."""

    split: str
    shards: int
    images: int
    bytes: int


@dataclass(frozen=True)
class Sharded:
    out: str
    classes: int
    splits: tuple[Written, ...]
    left_out: int
    notes: tuple[str, ...] = ()
    exit_code: int = 0

    def text(self) -> str:
        rows = [(split.split, split.shards, split.images, f"{split.bytes / 1e6:,.1f} MB") for split in self.splits]
        return f"{self.out}: {self.classes:,} classes\n" + table(("split", "shards", "images", "size"), rows)

    def records(self) -> Iterator[dict[str, Any]]:
        for split in self.splits:
            yield {
                "out": self.out,
                "classes": self.classes,
                "split": split.split,
                "shards": split.shards,
                "images": split.images,
                "bytes": split.bytes,
                "left_out": self.left_out,
            }


def shard(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    shard_size: str = "256MB",
    seed: int = 0,
    bad_images: BadImages = "stop",
    full_check: bool = False,
) -> Sharded:
    """Write a data set as tar shards in the webdataset layout, to be streamed from disk or from anywhere.

    The images' bytes are copied untouched, in a shuffled order: a stream can only be shuffled a little when it is read.
    The same data and seed give the same bytes. OUT is written whole or not at all.

    Example: vitreous shard photos/ shards/ --shard-size 100MB

    Args:
        data: a folder, a manifest, shards, builtin:NAME or the name of a known set.
        out: the folder to write, which must be new or empty.
        shard_size: how large a shard may become, as 256MB or 1GB.
        seed: of the order.
        full_check: decode every image to its last pixel, not only its header; slower, and finds images that are cut off.
    """

    from vitreous.core.output_dir import check_outside, find_data_folder
    from vitreous.core.progress import progress_bar
    from vitreous.data.bad_images import NAME as BAD_IMAGES
    from vitreous.data.open import open_data
    from vitreous.data.shards.writer import check_free, write_shards

    limit, folder = _bytes(shard_size), user_path(out)
    check_outside(folder, find_data_folder(data))
    check_free(folder)  # before DATA is opened, which may take a while
    dataset = open_data(data)
    with progress_bar(f"writing {out}", dataset.count()) as advance:
        report = write_shards(
            dataset,
            folder,
            shard_bytes=limit,
            seed=seed,
            bad_images=bad_images,
            full_check=full_check,
            progress=advance,
        )
    written: dict[str, Written] = {}
    for entry in report.shards:
        so_far = written.get(entry.split, Written(entry.split, 0, 0, 0))
        images, size = so_far.images + entry.count, so_far.bytes + entry.bytes
        written[entry.split] = Written(entry.split, so_far.shards + 1, images, size)
    notes = [*dataset.summary(), *report.notes]
    if report.bad:
        notes.append(f"{len(report.bad):,} bad images were left out; {out}/{BAD_IMAGES} lists them")
    return Sharded(str(report.out), len(report.classes), tuple(written.values()), len(report.bad), tuple(notes))


def _bytes(text: str) -> int:
    import re

    from vitreous.core.errors import VitreousError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS or (size := round(float(match[1]) * _UNITS[match[2].upper()])) < 1:
        raise VitreousError(f"--shard-size {text}: not a size; write 256MB or 1GB")
    return size
