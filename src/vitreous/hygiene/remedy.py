"""A manifest without the bad items: what is left out, why, and how it is written. No image is ever touched."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.source import ALL, SPLITS, Dataset, Source
from vitreous.errors import VitreousError
from vitreous.files import whole_file
from vitreous.hygiene.findings import Finding
from vitreous.hygiene.kinds import BAD_FILES
from vitreous.hygiene.scan import Scan

ENDINGS = (".csv", ".jsonl")
_SEPARATOR = ";"  # between several labels in a CSV manifest


@dataclass(frozen=True)
class Remedy:
    path: str
    kept: int
    left_out: dict[str, int]  # reason to number of items

    def __str__(self) -> str:
        total = sum(self.left_out.values())
        why = ", ".join(f"{reason}: {count:,}" for reason, count in self.left_out.items())
        return f"{self.path}: {self.kept:,} images kept, {total:,} left out" + (f" ({why})" if why else "")


def check_possible(target: Path, dataset: Dataset, out: Path) -> None:
    """Before the long work begins: whether such a manifest can be written, and there."""
    if target.suffix.lower() not in ENDINGS:
        raise VitreousError(f"--fix {target}: the manifest's name must end in {' or '.join(ENDINGS)}")
    if target.is_dir():
        raise VitreousError(f"--fix {target}: is a folder; name a file")
    if target.resolve() == Path(dataset.where).resolve():
        raise VitreousError(f"--fix {target}: would overwrite the data's own manifest; choose another name")
    if target.resolve().is_relative_to(out.resolve()):
        raise VitreousError(f"--fix {target}: lies in --out, which every run replaces; choose a place beside it")
    for split, source in dataset.splits.items():
        if not isinstance(source, Source) or (len(source) and source.path(0) is None):
            raise VitreousError(
                f"--fix: {dataset.where} ({split}) has no image files that a manifest could list; run doctor without --fix"
            )


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
    if finding.kind == "duplicate":  # near ones within a split are two pictures, and both may be wanted
        yield from kept[1:]


def write_manifest(target: Path, scan: Scan, findings: Iterable[Finding]) -> Remedy:
    reasons = leave_out(scan, findings)
    kept = [item for item in range(len(scan)) if item not in reasons]
    if not kept:
        raise VitreousError(f"--fix {target}: nothing is left of {scan.dataset.where} without the bad items; nothing written")
    with whole_file(target) as part, part.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        base = target.parent.resolve()
        if target.suffix.lower() == ".csv":
            writer = csv.writer(file)
            writer.writerow(("path", "label", "split"))
            for item in kept:
                path, labels, split = _row(scan, item, base)
                if any(_SEPARATOR in name or name != name.strip() for name in labels):
                    raise VitreousError(
                        f"--fix {target}: the class name {next(iter(labels))!r} cannot stand in a CSV manifest; use .jsonl"
                    )
                writer.writerow((path, _SEPARATOR.join(labels), split))
        else:
            for item in kept:
                path, labels, split = _row(scan, item, base)
                line: dict[str, object] = {"path": path}
                if labels:
                    line["label"] = labels[0] if len(labels) == 1 else list(labels)
                if split:
                    line["split"] = split
                file.write(json.dumps(line) + "\n")
    return Remedy(str(target), len(kept), dict(Counter(reasons.values()).most_common()))


def _row(scan: Scan, item: int, base: Path) -> tuple[str, tuple[str, ...], str]:
    path = scan.path(item)
    assert path is not None, "checked before the scan"
    split, _ = scan.where(item)
    try:
        relative = os.path.relpath(path, base)
    except ValueError:  # another drive, on Windows
        relative = path
    return Path(relative).as_posix(), scan.label_names(item), "" if split == ALL else split
