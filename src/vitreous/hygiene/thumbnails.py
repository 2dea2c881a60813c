"""Small pictures for the page, read a second time: only those that are shown, and of shards only those that hold one."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from PIL import Image

from vitreous.data.source import Source, Stream
from vitreous.data.workers import run_in_order
from vitreous.errors import VitreousError
from vitreous.hygiene.examine import examine
from vitreous.hygiene.scan import Scan

SIDE = 128
_CHUNK = 16


def thumbnails(scan: Scan, items: Iterable[int], workers: int = 0) -> dict[int, bytes]:
    """JPEG files by item; one that cannot be had is not there."""
    usable = scan.usable()
    wanted: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for item in sorted({item for item in items if usable[item]}):
        split, index = scan.where(item)
        number = scan.splits.index(split)
        if split in scan.names:
            names = scan.names[split]
            wanted[number, int(names.shard[index])].append((item, int(names.position[index])))
        else:
            wanted[number, -1].append((item, index))
    found: dict[int, bytes] = {}
    sources = tuple(scan.dataset.splits[split] for split in scan.splits)
    for part in run_in_order(_Maker(sources), list(_tasks(wanted)), workers):
        found.update(part)
    return found


def jpeg(picture: Image.Image, side: int = SIDE) -> bytes:
    small = picture.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.BILINEAR)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=78, optimize=True)
    return out.getvalue()


_Task = tuple[int, int, tuple[tuple[int, int], ...]]  # split, shard (or -1), and (item, its number there)


def _tasks(wanted: dict[tuple[int, int], list[tuple[int, int]]]) -> Iterator[_Task]:
    for (split, shard), entries in wanted.items():
        step = _CHUNK if shard < 0 else len(entries)  # a shard is read once
        for start in range(0, len(entries), step):
            yield split, shard, tuple(entries[start : start + step])


@dataclass(frozen=True)
class _Maker:
    sources: tuple[Source | Stream, ...]

    def __call__(self, task: _Task) -> dict[int, bytes]:
        split, shard, entries = task
        source = self.sources[split]
        made: dict[int, bytes] = {}
        try:
            if isinstance(source, Source):
                for item, index in entries:
                    if (picture := examine(source.read(index), source.id(index)).picture) is not None:
                        made[item] = jpeg(picture)
                return made
            places = {position: item for item, position in entries}
            for position, streamed in enumerate(source.read(shard)):
                if position in places and (picture := examine(streamed.content, streamed.id).picture) is not None:
                    made[places[position]] = jpeg(picture)
                if position >= max(places):
                    break
        except VitreousError:  # it was there a moment ago; the page does without
            pass
        return made
