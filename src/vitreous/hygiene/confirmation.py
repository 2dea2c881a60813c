"""A second look at near duplicates: fingerprints propose pairs, the pictures themselves decide.

Only pictures that are in a pair are read again. They are kept small and compressed, and a limited number of pairs is looked at
together, so that a million pairs need no more memory than a few thousand.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from PIL import Image

from vitreous.data.workers import run_in_order
from vitreous.hygiene.duplicates import SAME, Pair, confirm
from vitreous.hygiene.scan import Scan
from vitreous.hygiene.thumbnails import encoded_pictures

TOGETHER = 4096  # pairs; their pictures take about 10 KB each
_CHUNK = 16

Proposed = tuple[int, int, Pair]
"""Two items, by their numbers in their scans, and what the search said of them."""


def confirmed(
    scan: Scan,
    other: Scan,
    pairs: Sequence[Proposed],
    workers: int = 0,
    advance: Callable[[int], None] = lambda more: None,
) -> list[Proposed]:
    """The pairs that are near duplicates on a closer look, with the similarity seen then; `other` may be the scan itself."""
    sure: list[Proposed] = []
    for start in range(0, len(pairs), TOGETHER):
        some = pairs[start : start + TOGETHER]
        if other is scan:
            ours = theirs = encoded_pictures(scan, {item for a, b, _ in some for item in (a, b)}, workers)
        else:
            ours = encoded_pictures(scan, {a for a, _, _ in some}, workers)
            theirs = encoded_pictures(other, {b for _, b, _ in some}, workers)
        # A file that is gone by now cannot be looked at; what the fingerprints said of it stands.
        seen = [entry for entry in some if entry[0] in ours and entry[1] in theirs]
        sure += [entry for entry in some if entry[0] not in ours or entry[1] not in theirs]
        chunks = [seen[i : i + _CHUNK] for i in range(0, len(seen), _CHUNK)]
        tasks = ([(ours[a], theirs[b]) for a, b, _ in chunk] for chunk in chunks)
        for chunk, similarities in zip(chunks, run_in_order(_compare, tasks, workers), strict=True):
            for (a, b, pair), similarity in zip(chunk, similarities, strict=True):
                if similarity >= SAME:
                    sure.append((a, b, replace(pair, similarity=similarity)))
            advance(len(chunk))
    return sure


def _compare(pairs: Iterable[tuple[bytes, bytes]]) -> list[float]:
    return [confirm(_picture(first), _picture(second)) for first, second in pairs]


def _picture(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as opened:
        return opened.convert("RGB")
