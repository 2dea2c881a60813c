"""Thumbnails: images read a second time, only those that are shown or compared, and of shards only those that hold one."""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.loading.workers import run_in_order, set_current_item
from vitreous.data.source import Source, Stream
from vitreous.doctor.examine import examine
from vitreous.doctor.scan import Scan
from vitreous.doctor.stream_index import ScannedStream

SIDE = 128
_CHUNK = 16


def make_thumbnails(scan: Scan, items: Iterable[int], workers: int = 0) -> dict[int, bytes]:
    """For the report: JPEG files of SIDE pixels, by item; an image that cannot be read any more is left out."""
    return _read_again(scan, items, workers, SIDE, 78)


def encode_images(scan: Scan, items: Iterable[int], workers: int = 0) -> dict[int, bytes]:
    """For a closer look: as large as they are examined, as JPEG files of high quality."""
    return _read_again(scan, items, workers, None, 95)


def _read_again(scan: Scan, items: Iterable[int], workers: int, side: int | None, quality: int) -> dict[int, bytes]:
    usable = scan.usable()
    places_of: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for item in sorted({item for item in items if usable[item]}):
        split, index = scan.where(item)
        number = scan.splits.index(split)
        source = scan.sources[split]
        if isinstance(source, ScannedStream):
            found_at = source.scanned[index]
            places_of[number, found_at.shard].append((item, found_at.position))
        else:
            places_of[number, -1].append((item, index))
    found: dict[int, bytes] = {}
    sources = tuple(scan.dataset.splits[split] for split in scan.splits)
    for part in run_in_order(_Maker(sources, side, quality), list(_tasks(places_of)), workers):
        found.update(part)
    return found


def encode_jpeg(image: Image.Image, side: int | None = SIDE, quality: int = 78) -> bytes:
    small = image.convert("RGB")
    if side is not None:
        small.thumbnail((side, side), Image.Resampling.BILINEAR)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=quality, subsampling="4:4:4" if side is None else "4:2:0")
    return out.getvalue()


_Task = tuple[int, int, tuple[tuple[int, int], ...]]  # split, shard (or -1), and (item, its number there)


def _tasks(places_of: dict[tuple[int, int], list[tuple[int, int]]]) -> Iterator[_Task]:
    for (split, shard), entries in places_of.items():
        step = _CHUNK if shard < 0 else len(entries)  # a shard is read once
        for start in range(0, len(entries), step):
            yield split, shard, tuple(entries[start : start + step])


@dataclass(frozen=True)
class _Maker:
    sources: tuple[Source | Stream, ...]
    side: int | None
    quality: int

    def __call__(self, task: _Task) -> dict[int, bytes]:
        split, shard, entries = task
        source = self.sources[split]
        made: dict[int, bytes] = {}
        # It was there a moment ago; where it is no longer, the page does without.
        with contextlib.suppress(VitreousError):
            if isinstance(source, Source):
                for item, index in entries:
                    set_current_item(source.place(index))
                    if (image := examine(source.read(index), source.id(index)).image) is not None:
                        made[item] = encode_jpeg(image, self.side, self.quality)
                return made
            positions = {position: item for item, position in entries}
            for position, streamed in enumerate(source.read(shard)):
                if position in positions and (image := examine(streamed.content, streamed.id).image) is not None:
                    made[positions[position]] = encode_jpeg(image, self.side, self.quality)
                if position >= max(positions):
                    break
        return made
