"""Check the header of every image before training, so that a bad file fails early.

It finds what is missing, empty, no image or too large. What is broken further inside is the doctor's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitreous.core.progress import Advance
from vitreous.data.bad_images import read_or_refuse
from vitreous.data.loading.workers import run_in_order, set_current_item
from vitreous.data.source import Content, Source, Stream
from vitreous.data.transforms.decode import BadImage, open_image
from vitreous.doctor.scan import divide

CHUNK = 256


def check_headers(source: Source | Stream, workers: int = 0, advance: Advance = lambda more: None) -> tuple[BadImage, ...]:
    """The items whose header cannot be read, in their order. A shard that breaks off is an error, as in training."""
    if isinstance(source, Source) and not source.encoded:
        return ()  # pixels have no header
    found: list[BadImage] = []
    for count, bad in run_in_order(_Headers(source), divide(source, CHUNK), workers):
        found += bad
        advance(count)
    return tuple(found)


@dataclass(frozen=True)
class _Headers:
    source: Source | Stream

    def __call__(self, task: tuple[int, int]) -> tuple[int, list[BadImage]]:
        start, stop = task
        if isinstance(self.source, Source):
            return stop - start, [bad for index in range(start, stop) if (bad := _of_item(self.source, index))]
        count, found = 0, []
        for item in self.source.read(start):
            count += 1
            set_current_item(item.place)
            if bad := _of_header(item.content, item.place):
                found.append(bad)
        return count, found


def _of_item(source: Source, index: int) -> BadImage | None:
    place, path = source.place(index), source.path(index)
    set_current_item(place)
    return _of_header(Path(path) if path is not None else read_or_refuse(source, index), place)


def _of_header(content: Content | Path | BadImage, place: str) -> BadImage | None:
    if isinstance(content, BadImage):
        return content
    try:
        if not isinstance(content, np.ndarray):
            open_image(content, place).close()
    except BadImage as bad:
        return bad
    return None
