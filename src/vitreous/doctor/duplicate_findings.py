"""Findings about exact and near duplicates within a data set and between two.

Copies are reported as groups, not as pairs: ten copies are one finding and not forty-five. Only one of several equal files is
compared with the rest, but all of them are in the group that it falls into, so that a copy in another split is never lost.
Near duplicates are proposed by their fingerprints and confirmed by the images.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.progress import progress_bar
from vitreous.doctor.confirmation import confirm_pairs
from vitreous.doctor.duplicates import Pair, find_near_duplicates
from vitreous.doctor.findings import OTHER, Finding, split_order
from vitreous.doctor.scan import Scan
from vitreous.doctor.union_find import UnionFind


def find_copies(scan: Scan, *, near: bool = True, workers: int = 0) -> Iterator[Finding]:
    """Within one data set, and across its splits."""
    exact = _group_equal(np.flatnonzero(scan.usable()), scan.records["digest"])
    for group in exact:
        kind = "label-conflict" if _labels_conflict(scan, group) else "duplicate"
        yield _copy_finding(scan, kind, group, _describe_copies(kind, "the same file, byte for byte", scan, group))
    if near and scan.prints is not None:
        same = {group[0]: group for group in exact}
        prints = scan.prints.of(_representatives(scan, exact))
        with progress_bar("comparing images", len(prints.rows)) as advance:
            pairs = find_near_duplicates(prints, advance=advance)
        yield from _group_near(scan, same, _confirm(scan, scan, pairs, workers))


def find_copies_between(scan: Scan, other: Scan, *, near: bool = True, workers: int = 0) -> Iterator[Finding]:
    """What of one data set is in another one too."""
    both = np.concatenate([scan.records["digest"], other.records["digest"]])
    known: set[int] = set()
    for group in _group_equal(
        np.concatenate([np.flatnonzero(scan.usable()), np.flatnonzero(other.usable()) + len(scan)]), both
    ):
        here, there = [i for i in group if i < len(scan)], [i - len(scan) for i in group if i >= len(scan)]
        if here and there:
            known.update(here)
            yield _between_finding(scan, other, here, there, "the same file, byte for byte", None)
    if near and scan.prints is not None and other.prints is not None:
        exact, others = (
            _group_equal(np.flatnonzero(scan.usable()), scan.records["digest"]),
            _group_equal(np.flatnonzero(other.usable()), other.records["digest"]),
        )
        alone = _representatives(scan, exact)
        alone[list(known)] = False
        ours, theirs = scan.prints.of(alone), other.prints.of(_representatives(other, others))
        same, same_there = ({group[0]: group for group in groups} for groups in (exact, others))
        with progress_bar("comparing the two", min(len(ours.rows), len(theirs.rows))) as advance:
            pairs = find_near_duplicates(ours, theirs, advance=advance)
        found: dict[int, list[Pair]] = defaultdict(list)
        for pair in _confirm(scan, other, pairs, workers):
            found[pair.first].append(pair)
        for item, seen in found.items():
            matches = [copy for pair in seen for copy in same_there.get(pair.second, [pair.second])]
            yield _between_finding(
                scan, other, same.get(item, [item]), matches, _describe_changes(seen), min(p.similarity for p in seen)
            )


def _confirm(scan: Scan, other: Scan, pairs: Sequence[Pair], workers: int) -> list[Pair]:
    if not pairs:
        return []
    with progress_bar("looking at likely copies again", len(pairs)) as advance:
        return confirm_pairs(scan, other, pairs, workers, advance)


def _group_equal(items: NDArray[np.int64], digests: NDArray[Any]) -> list[list[int]]:
    """Groups of two and more items with the same digest, each in order."""
    first, second = digests[items, 0], digests[items, 1]
    order = np.lexsort((items, second, first))
    a, b = first[order], second[order]
    change = np.flatnonzero((a[1:] != a[:-1]) | (b[1:] != b[:-1])) + 1
    groups = np.split(items[order], change) if len(items) else []
    return sorted(group.tolist() for group in groups if len(group) > 1)


def _representatives(scan: Scan, exact: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """Which items stand for themselves: all that can be used, but of equal files only the first."""
    alone = scan.usable()
    alone[[item for group in exact for item in group[1:]]] = False
    return alone


def _group_near(scan: Scan, same: dict[int, list[int]], pairs: Sequence[Pair]) -> Iterator[Finding]:
    together = UnionFind()
    for pair in pairs:
        together.join(pair.first, pair.second)
    groups: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[together.find(pair.first)].append(pair)
    for found in groups.values():
        alone = {item for pair in found for item in (pair.first, pair.second)}
        group = sorted(copy for item in alone for copy in same.get(item, [item]))
        # A group may hang together by a chain, so that its ends are not alike: only direct pairs count as conflicts.
        kind = (
            "label-conflict" if any(_labels_conflict(scan, (pair.first, pair.second)) for pair in found) else "near-duplicate"
        )
        detail = _describe_copies(kind, _describe_changes(found), scan, group)
        yield _copy_finding(scan, kind, group, detail, min(pair.similarity for pair in found))


def _labels_conflict(scan: Scan, items: Iterable[int]) -> bool:
    """Whether copies have different labels. A copy without a label contradicts nothing."""
    return len({frozenset(scan.label_names(item)) for item in items} - {frozenset()}) > 1


def _describe_changes(pairs: Sequence[Pair]) -> str:
    """What the search could tell of how they differ."""
    ways = sorted({pair.how for pair in pairs})
    return f"{', '.join(ways)}; similarity {min(pair.similarity for pair in pairs):.2f}"


def _describe_copies(kind: str, how: str, scan: Scan, group: Sequence[int]) -> str:
    splits = split_order(scan.where(item)[0] for item in group)
    if kind == "label-conflict":
        names = dict.fromkeys(" + ".join(scan.label_names(item)) for item in group)
        how = f"labelled {', '.join(name for name in names if name)}: {how}"
    return f"{how} ({len(group)} copies{', in ' + ' and '.join(splits) if len(splits) > 1 else ''})"


def _copy_finding(scan: Scan, kind: str, group: Sequence[int], detail: str, similarity: float | None = None) -> Finding:
    return Finding(
        kind,
        detail,
        split_order(scan.where(item)[0] for item in group),
        tuple(scan.id(item) for item in group),
        tuple(group),
        count=len(group),
        labels=tuple(scan.label_names(item) for item in group),
        similarity=similarity,
    )


def _between_finding(
    scan: Scan, other: Scan, group: Sequence[int], matches: Sequence[int], how: str, similarity: float | None
) -> Finding:
    matches = sorted(set(matches))
    ours = {frozenset(scan.label_names(item)) for item in group} - {frozenset()}
    theirs = {frozenset(other.label_names(item)) for item in matches} - {frozenset()}
    # Other data sets have other classes as a rule; only where they have the same can labels contradict each other.
    conflict = scan.dataset.classes == other.dataset.classes and len(ours | theirs) > 1
    kind = "label-conflict" if conflict else "duplicate" if similarity is None else "near-duplicate"
    labels = sorted(" + ".join(sorted(names)) for names in ours | theirs)
    return Finding(
        kind,
        f"also in {other.dataset.where}: {how}" + (f"; labelled {', '.join(labels)}" if conflict else ""),
        split_order([*(scan.where(i)[0] for i in group), *(OTHER + other.where(i)[0] for i in matches)]),
        (*(scan.id(item) for item in group), *(f"{other.dataset.where.rstrip('/')}/{other.id(item)}" for item in matches)),
        tuple(group),
        tuple(matches),
        len(group) + len(matches),
        (*(scan.label_names(item) for item in group), *(other.label_names(item) for item in matches)),
        similarity,
    )
