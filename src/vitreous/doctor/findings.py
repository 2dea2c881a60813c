"""Findings about files, classes and images, derived from a scan."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.core.errors import first_few
from vitreous.data.conventions import SPLIT_NAMES
from vitreous.data.source import ALL, SPLITS, Dataset
from vitreous.doctor.finding_types import BAD_FILES, KINDS, ORDER, corrupts
from vitreous.doctor.scan import Scan

UNEVEN = 10  # largest class : smallest class
LONG = 5  # longer side : shorter side
TINY_SIDE, TINY_SHARE = 64, 0.25  # shorter side below both: this many pixels, and this share of the set's median
BLANK = 1.0  # standard deviation of the pixels, 0..255; compression noise on one colour stays below
LISTED = 1000  # paths in one finding that is about many images alike; `count` tells how many there are
USUAL_MODES = ("RGB", "L")
OTHER = "against:"  # before the splits of the data set that was compared with


@dataclass(frozen=True)
class RequiredSize:
    """The size that the preprocessing asks of an image; one that is smaller is enlarged, or cannot be used."""

    height: int
    width: int
    enlarges: bool


@dataclass(frozen=True)
class Finding:
    kind: str
    detail: str
    splits: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    items: tuple[int, ...] = ()  # numbers in the scan, as many as paths of it
    others: tuple[int, ...] = ()  # numbers in the scan of the data set that was compared with; their paths come last
    count: int = 0  # how many images it concerns
    labels: tuple[tuple[str, ...], ...] = ()  # for copies: of each path
    similarity: float | None = None  # for near duplicates: of the least similar pair
    classes: tuple[str, ...] = ()  # for what is about classes, not about files

    @property
    def corrupts(self) -> bool:
        return corrupts(self.kind, self.splits)

    def record(self) -> dict[str, Any]:
        """As it stands in findings.jsonl."""
        similarity = None if self.similarity is None else round(self.similarity, 4)
        optional = {"labels": [list(names) for names in self.labels], "similarity": similarity, "classes": list(self.classes)}
        return {
            "kind": self.kind,
            "paths": list(self.paths),
            "split": ",".join(self.splits),
            "detail": self.detail,
            "corrupts": self.corrupts,
            "count": self.count or len(self.paths),
            **{key: value for key, value in optional.items() if value not in (None, [])},
        }


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """As every listing has them: conflicts, then copies across splits, then what else corrupts, then advice."""

    def rank(finding: Finding) -> tuple[Any, ...]:
        return (
            not finding.corrupts,
            ORDER[finding.kind],
            len(finding.splits) < 2,
            -(finding.similarity or 0),
            finding.splits,
            finding.paths[:1],
        )

    return sorted(findings, key=rank)


def split_order(splits: Iterable[str]) -> tuple[str, ...]:
    """Each split once: train, validation, test, then others, then those of the data set compared with."""
    places = {name: number for number, name in enumerate((*SPLITS, ALL))}
    return tuple(sorted(set(splits), key=lambda name: (name.startswith(OTHER), places.get(name.removeprefix(OTHER), 9), name)))


def file_findings(scan: Scan) -> Iterator[Finding]:
    """One finding for each file that cannot be used as it is."""
    for item in np.flatnonzero(scan.records["problem"] != b"").tolist():
        kind = scan.records["problem"][item].decode()
        split, _ = scan.where(item)
        yield Finding(
            kind if kind in BAD_FILES else "unreadable", scan.texts.get(item, ""), (split,), (scan.id(item),), (item,), count=1
        )
    for split, reason in scan.broken:
        yield Finding("broken-shard", reason, (split,), count=1)


def left_out_findings(dataset: Dataset) -> Iterator[Finding]:
    """What the folder's index passed over, by its reasons; files of no interest are reported together."""
    together: dict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for entry in dataset.left_out:
        first = SPLIT_NAMES.get(entry.path.split("/")[0].lower(), "")
        splits: tuple[str, ...] = (first,) if first in dataset.splits else ()
        if entry.kind == "left-out":
            together[splits, entry.why].append(entry.path)
        else:
            yield Finding(entry.kind, entry.why, splits, (entry.path,), count=1)
    for (splits, why), paths in together.items():
        yield Finding("left-out", why, splits, tuple(paths[:LISTED]), count=len(paths))
    if (unnamed := dataset.left_out_count - len(dataset.left_out)) > 0:
        yield Finding("left-out", "more than are kept by name", count=unnamed)


def class_findings(scan: Scan) -> Iterator[Finding]:
    classes = scan.dataset.classes
    counts = {split: scan.sources[split].counts() for split in scan.splits}
    labelled = {split: count for split, count in counts.items() if count.sum()}
    everywhere = sum(labelled.values()) if labelled else np.zeros(len(classes), np.int64)
    for split, count in labelled.items():
        absent = [classes[i] for i in np.flatnonzero((count == 0) & (everywhere > 0))]
        if absent:
            others = ", ".join(s for s, c in labelled.items() if any(c[classes.index(name)] for name in absent))
            yield Finding(
                "class-mismatch",
                f"no images of {first_few(absent)} in {split}, but in {others}",
                (split,),
                classes=tuple(absent),
            )
        filled = count[count > 0]
        if len(filled) > 1 and filled.max() >= UNEVEN * filled.min():
            most, least = int(count.argmax()), int(np.where(count > 0, count, count.max() + 1).argmin())
            detail = f"{classes[most]} has {count[most]:,} images, {classes[least]} has {count[least]:,}"
            yield Finding("imbalance", detail, (split,), classes=(classes[most], classes[least]))
        if without := scan.unlabelled(split).tolist():
            yield _group_finding(scan, "unlabelled", split, "no label", without)
    for names in _similar_names(classes[i] for i in np.flatnonzero(everywhere)):
        holding = [split for split, count in labelled.items() if any(count[classes.index(name)] for name in names)]
        detail = f"{first_few([ascii(name) for name in names])} differ only in case or Unicode form"
        yield Finding("similar-class-names", detail, split_order(holding), classes=names)
    # Only where there is something to train on are all classes asked for: a test set may well have a part of them.
    learnt = tuple(split for split in ("train", ALL) if split in labelled)
    empty = [classes[i] for i in np.flatnonzero(everywhere == 0)]
    if empty and learnt:
        yield Finding("empty-class", f"{first_few(empty)}: no image at all", learnt, classes=tuple(empty))


def _similar_names(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Groups of names that are equal but for case and Unicode form; `A` and `a` alone are two letters, and two classes."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        composed = unicodedata.normalize("NFC", name)
        groups[composed if len(composed) == 1 else unicodedata.normalize("NFC", composed.casefold())].append(name)
    yield from (tuple(group) for group in groups.values() if len(group) > 1)


def image_findings(scan: Scan, demand: RequiredSize | None = None) -> Iterator[Finding]:
    """What is unusual about images that can be used; one finding for all images of a split that are alike in it."""
    records, usable = scan.records, scan.usable()
    height, width = records["height"].astype(np.int64), records["width"].astype(np.int64)
    shorter, longer = np.minimum(height, width), np.maximum(height, width)
    usual = float(np.median(shorter[usable])) if usable.any() else 0.0
    # Kind, images concerned, and what is said of each, with what its record holds.
    checks = [
        ("rotated", records["orientation"] != 1, "EXIF orientation {orientation}"),
        ("animated", records["frames"] > 1, "only the first of its frames or pages is used"),
        ("blank", records["deviation"].max(axis=1) < BLANK, "all of one colour"),
        ("extreme-aspect", longer >= LONG * shorter, f"one side is {LONG} times as long as the other, or more"),
        (
            "tiny",
            (shorter < TINY_SIDE) & (shorter < TINY_SHARE * usual),
            f"shorter side below {min(TINY_SIDE, TINY_SHARE * usual):.0f} pixels, where {usual:.0f} is usual",
        ),
        ("misnamed", records["misnamed"], "{format} by its content, not by its name"),
        ("suspicious", records["odd"] & (records["problem"] == b""), "{odd}"),
        ("unusual-mode", ~np.isin(records["mode"], [mode.encode() for mode in USUAL_MODES]), "mode {mode}"),
    ]
    if demand:
        small, size = (height < demand.height) | (width < demand.width), f"{demand.height} x {demand.width}"
        enlarged = ("upscaled", small, f"smaller than the {size} of the preprocessing")
        checks.append(enlarged if demand.enlarges else ("too-small", small, f"a part of {size} cannot be cut out of it"))
    for split in scan.splits:
        part = np.zeros(len(scan), bool)
        part[scan.part(split)] = True
        for kind, concerned, text in checks:
            groups: dict[str, list[int]] = defaultdict(list)
            for item in np.flatnonzero(concerned & usable & part).tolist():
                words = {name: records[name][item].decode() for name in ("format", "mode")}
                detail = text.format(**words, orientation=records["orientation"][item], odd=scan.texts.get(item, ""))
                groups[detail].append(item)
            for detail, items in groups.items():
                yield _group_finding(scan, kind, split, detail, items)


def _group_finding(scan: Scan, kind: str, split: str, detail: str, items: Sequence[int]) -> Finding:
    listed = tuple(items[:LISTED])
    return Finding(kind, detail, (split,), tuple(scan.id(item) for item in listed), listed, count=len(items))


def count_findings(findings: Iterable[Finding]) -> dict[str, int]:
    """Kind to number of findings, in the order of the table."""
    counts = Counter(finding.kind for finding in findings)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}
