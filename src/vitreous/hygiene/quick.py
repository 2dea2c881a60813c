"""The quick scan before training: every file's header is read, so that a run does not stop at a bad image after an hour.

It finds what is missing, empty, no image or too large. What is broken further inside is the doctor's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.decode import BadImage, open_image
from vitreous.data.source import Arrays, Content, Source, Stream, Subset
from vitreous.data.workers import run_in_order, working_on
from vitreous.errors import VitreousError
from vitreous.files import whole_file

CHUNK = 256
FILE = "bad_images.jsonl"


@dataclass(frozen=True)
class Bad:
    kind: str
    path: str  # the item's id
    why: str


def quick_scan(
    source: Source | Stream, workers: int = 0, advance: Callable[[int], None] = lambda more: None
) -> tuple[Bad, ...]:
    """The items whose header cannot be read, in their order. A shard that breaks off is an error, as in training."""
    if _pixels(source):
        return ()
    tasks: list[tuple[int, int]]
    if isinstance(source, Source):
        tasks = [(start, min(start + CHUNK, len(source))) for start in range(0, len(source), CHUNK)]
    else:
        tasks = [(shard, shard + 1) for shard in range(len(source.shards))]
    found: list[Bad] = []
    for count, bad in run_in_order(_Headers(source), tasks, workers):
        found += bad
        advance(count)
    return tuple(found)


def write_bad_images(folder: Path, bad: Iterable[Bad]) -> Path:
    """One JSON object a line: kind, path, why."""
    target = folder / FILE
    with whole_file(target) as part, part.open("w", encoding="utf-8") as file:
        for one in bad:
            file.write(json.dumps(asdict(one)) + "\n")  # in ASCII: names need not be valid Unicode
    return target


def _pixels(source: Source | Stream) -> bool:
    while isinstance(source, Subset):
        source = source.parent
    return isinstance(source, Arrays)


@dataclass(frozen=True)
class _Headers:
    source: Source | Stream

    def __call__(self, task: tuple[int, int]) -> tuple[int, list[Bad]]:
        start, stop = task
        found: list[Bad] = []
        if isinstance(self.source, Source):
            for index in range(start, stop):
                found += self._of_item(self.source, index)
            return stop - start, found
        count = 0
        for item in self.source.read(start):
            found += _header(item.content, item.id, item.place)
            count += 1
        return count, found

    def _of_item(self, source: Source, index: int) -> list[Bad]:
        place, path = source.place(index), source.path(index)
        if path is not None:
            return _header(Path(path), source.id(index), place)
        try:
            return _header(source.read(index), source.id(index), place)
        except VitreousError as error:
            kind = error.kind if isinstance(error, BadImage) else "unreadable"
            return [Bad(kind, source.id(index), str(error).removeprefix(f"{place}: "))]


def _header(content: Content | Path, name: str, place: str) -> list[Bad]:
    if isinstance(content, np.ndarray):
        return []
    working_on(place)
    try:
        open_image(content, place).close()
    except BadImage as bad:
        return [Bad(bad.kind, name, bad.why)]
    except Exception as error:  # Pillow's readers raise anything on foreign bytes
        return [Bad("unreadable", name, f"broken image ({error or type(error).__name__}); replace it or leave it out")]
    return []


def listed(bad: Iterable[Bad], most: int = 20) -> str:
    """For an error message: the first of them by name."""
    bad = list(bad)
    names: list[Any] = [f"{one.path} ({one.kind})" for one in bad[:most]]
    return ", ".join(names) + (f" and {len(bad) - most:,} more" if len(bad) > most else "")
