"""Write a manifest without the bad items of a data set; image files are never changed."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path
from vitreous.core.output_dir import check_writable
from vitreous.data.source import ALL, SPLITS, Dataset, Source
from vitreous.data.sources import manifest
from vitreous.data.sources.file_source import describe_class_difference
from vitreous.doctor.finding_types import BAD_FILES
from vitreous.doctor.findings import Finding
from vitreous.doctor.scan import Scan


@dataclass(frozen=True)
class Remedy:
    path: str
    kept: int
    left_out: dict[str, int]  # reason to number of items
    refused: str = ""  # why training would not take what is left; then nothing was written

    def __str__(self) -> str:
        if self.refused:
            remedy = "rename or merge those classes, or add images to them"
            return f"{self.path}: not written, because training would refuse it: {self.refused}; {remedy}"
        if not self.kept:
            return f"{self.path}: not written, because nothing is left without the bad images"
        total = sum(self.left_out.values())
        why = ", ".join(f"{reason}: {count:,}" for reason, count in self.left_out.items())
        return f"{self.path}: {self.kept:,} images kept, {total:,} left out" + (f" ({why})" if why else "")


def check_possible(target: Path, dataset: Dataset, out: Path, against: Dataset | None = None) -> None:
    """Before the long work begins: whether such a manifest can be written, and there."""
    if target.resolve().is_relative_to(out.resolve()):
        raise VitreousError(f"--fix {target}: lies in --out, which every run replaces; choose a place beside it")
    _check_new(target, dataset, against)
    check_writable("--fix", target)
    for split, source in dataset.splits.items():
        if not isinstance(source, Source) or (len(source) and source.path(0) is None):
            raise VitreousError(
                f"--fix: {dataset.where} ({split}) has no image files that a manifest could list; run doctor without --fix"
            )
    try:
        manifest.check_expressible(target, dataset.classes, dataset.splits)
    except VitreousError as error:
        raise VitreousError(f"--fix {error}") from error


def _check_new(target: Path, *datasets: Dataset | None) -> None:
    """Nothing that is there is written over, least of all the data's own manifest."""
    if target.is_dir():
        raise VitreousError(f"--fix {target}: is a folder; name a file")
    names = [data.where for data in datasets if data is not None]
    names += [name.rpartition(":")[0] for name in names]  # `list.csv:train` is one split of list.csv
    if any(name and target.resolve() == user_path(name).resolve() for name in names):
        raise VitreousError(f"--fix {target}: would overwrite the data's own manifest; choose another name")
    if os.path.lexists(target):
        raise VitreousError(f"--fix {target}: exists already; choose another name or remove it")


def leave_out(scan: Scan, findings: Iterable[Finding]) -> dict[int, str]:
    """Item to reason. Of copies one remains: in test rather than in validation, and there rather than in train."""
    reasons: dict[int, str] = {}
    for finding in findings:
        if finding.kind == "label-conflict":
            reasons.update(dict.fromkeys(finding.items, "copies with different labels"))
        elif finding.kind in BAD_FILES:
            reasons.update(dict.fromkeys(finding.items, "bad files"))
        elif finding.kind in ("duplicate", "near-duplicate"):
            for item in _spare_copies(scan, finding):
                reasons.setdefault(item, _reason(finding))
    return reasons


def _reason(finding: Finding) -> str:
    if finding.others:
        return "in the data compared with"
    what = "near duplicates" if finding.kind == "near-duplicate" else "duplicates"
    return f"{what} {'of another split' if len(finding.splits) > 1 else 'within a split'}"


def _spare_copies(scan: Scan, finding: Finding) -> Iterator[int]:
    if finding.others:
        yield from finding.items
        return
    rank = {split: number for number, split in enumerate((ALL, *SPLITS))}
    splits = {item: rank.get(scan.where(item)[0], 0) for item in finding.items}
    best = max(splits.values())
    kept = [item for item in finding.items if splits[item] == best]
    yield from (item for item in finding.items if splits[item] != best)
    if finding.kind == "duplicate":  # near ones within a split are two images, and both may be needed
        yield from kept[1:]


def write_manifest(target: Path, scan: Scan, findings: Iterable[Finding]) -> Remedy:
    """What is left, written. Where nothing is, or training would refuse it, no file is made, and the remedy says so."""
    reasons = leave_out(scan, findings)
    kept = [item for item in range(len(scan)) if item not in reasons]
    left_out = dict(Counter(reasons.values()).most_common())
    classes: dict[str, dict[str, None]] = defaultdict(dict)
    for item in kept:
        classes[scan.where(item)[0]].update(dict.fromkeys(scan.label_names(item)))
    if refused := describe_class_difference({split: tuple(names) for split, names in classes.items()}):
        return Remedy(str(target), len(kept), left_out, refused)
    if kept:
        _check_new(target, scan.dataset)  # once more: the scan may have taken hours
        base = target.parent.resolve()
        manifest.write_manifest(target, (_row(scan, item, base) for item in kept))
    return Remedy(str(target), len(kept), left_out)


def _row(scan: Scan, item: int, base: Path) -> manifest.Row:
    path = scan.path(item)
    assert path is not None, "checked before the scan"
    return manifest.relative_path(path, base), scan.label_names(item), scan.where(item)[0]
