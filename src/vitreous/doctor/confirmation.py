"""Confirm near duplicates on the images themselves after their fingerprints proposed them.

Only images that are in a pair are read again. They are kept small and compressed, and a limited number of pairs is looked at
together, so that a million pairs need no more memory than a thousand. A thousand copies of one image make half a million
pairs; those whose two are known to belong together already, and which can bring no news of labels, are passed over.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace

from PIL import Image

from vitreous.core.progress import Advance
from vitreous.data.loading.workers import run_in_order
from vitreous.doctor.duplicates import SAME, Pair, confirm
from vitreous.doctor.scan import Scan
from vitreous.doctor.thumbnails import encode_images
from vitreous.doctor.union_find import UnionFind

TOGETHER = 1024  # pairs; their images take about 10 KB each
_CHUNK = 16

"""Two items, by their numbers in their scans, and what the search said of them."""


def confirm_pairs(
    scan: Scan,
    other: Scan,
    pairs: Sequence[Pair],
    workers: int = 0,
    advance: Advance = lambda more: None,
) -> list[Pair]:
    """The pairs that are near duplicates on a closer look, with the similarity seen then; `other` may be the scan itself."""
    sure: list[Pair] = []
    known = _Known(scan, other)
    for start in range(0, len(pairs), TOGETHER):
        together = pairs[start : start + TOGETHER]
        some = [pair for pair in together if not known.settled(pair.first, pair.second)]
        sure_before = len(sure)
        if other is scan:
            ours = theirs = encode_images(scan, {item for pair in some for item in (pair.first, pair.second)}, workers)
        else:
            ours = encode_images(scan, {pair.first for pair in some}, workers)
            theirs = encode_images(other, {pair.second for pair in some}, workers)
        # A file that is gone by now cannot be looked at; what the fingerprints said of it stands.
        seen = [pair for pair in some if pair.first in ours and pair.second in theirs]
        sure += [pair for pair in some if pair.first not in ours or pair.second not in theirs]
        advance(len(together) - len(seen))  # nothing more is to be done for the others
        chunks = [seen[i : i + _CHUNK] for i in range(0, len(seen), _CHUNK)]
        tasks = ([(ours[pair.first], theirs[pair.second], pair.trimmed) for pair in chunk] for chunk in chunks)
        for chunk, similarities in zip(chunks, run_in_order(_compare_pairs, tasks, workers), strict=True):
            closer = [replace(pair, similarity=seen_now) for pair, seen_now in zip(chunk, similarities, strict=True)]
            sure += [pair for pair in closer if pair.similarity >= SAME]
            advance(len(chunk))
        for pair in sure[sure_before:]:
            known.join(pair.first, pair.second)
    return sure


class _Known:
    """Which images belong together by the pairs confirmed so far, and whether their labels contradict each other."""

    def __init__(self, scan: Scan, other: Scan) -> None:
        self._scan, self._other = scan, other
        self._offset = 0 if other is scan else len(scan)
        self._groups = UnionFind()
        self._conflict: set[int] = set()  # leaders

    def settled(self, a: int, b: int) -> bool:
        first = self._groups.find(a)
        together = first == self._groups.find(b + self._offset)
        return together and (first in self._conflict or not self._differ(a, b))

    def join(self, a: int, b: int) -> None:
        conflict = self._groups.find(b + self._offset) in self._conflict or self._differ(a, b)
        leader = self._groups.join(a, b + self._offset)
        if conflict:
            self._conflict.add(leader)

    def _differ(self, a: int, b: int) -> bool:
        return set(self._scan.label_names(a)) != set(self._other.label_names(b))


def _compare_pairs(pairs: Iterable[tuple[bytes, bytes, tuple[tuple[bool, bool], ...]]]) -> list[float]:
    return [confirm(_decode(first), _decode(second), trimmed) for first, second, trimmed in pairs]


def _decode(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as opened:
        return opened.convert("RGB")
