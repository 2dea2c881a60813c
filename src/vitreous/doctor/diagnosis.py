"""Run all data checks on a data set and write the folder with findings, summary and report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_folder
from vitreous.core.output_dir import check_result_folder, find_data_folder
from vitreous.core.printable import printable
from vitreous.core.progress import progress_bar
from vitreous.core.table import table
from vitreous.data.open import open_data
from vitreous.data.source import Dataset
from vitreous.data.transforms.parse import Preprocess
from vitreous.doctor.doctor_report import describe_verdict, render_report
from vitreous.doctor.duplicate_findings import find_copies, find_copies_between
from vitreous.doctor.findings import (
    Finding,
    class_findings,
    file_findings,
    image_findings,
    left_out_findings,
    sort_findings,
)
from vitreous.doctor.fix_manifest import Remedy, check_possible, write_manifest
from vitreous.doctor.preview import find_required_size, make_previews
from vitreous.doctor.scan import Scan, scan_dataset
from vitreous.doctor.summary import MADE_BY, summarise

FILES = ("findings.jsonl", "summary.json", "report.html")
FIRST = 12  # findings printed on the terminal


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What the doctor found, and where it was written."""

    scan: Scan
    against: Scan | None
    findings: tuple[Finding, ...]
    summary: dict[str, Any]
    preprocess: Preprocess
    out: str = ""
    remedy: Remedy | None = None

    @property
    def corrupt(self) -> bool:
        return any(finding.corrupts for finding in self.findings)

    @property
    def exit_code(self) -> int:
        return 1 if self.corrupt else 0

    @property
    def notes(self) -> tuple[str, ...]:
        dataset = self.scan.dataset  # what was left out of it is among the findings
        return (dataset.describe(), *dataset.notes, *_notes_of_other(self.against))

    def text(self) -> str:
        lines = [describe_verdict(self.findings)]
        if self.findings:
            counts, worst = self.summary["findings"], self.summary["corrupting"]
            images = {kind: sum(f.count for f in self.findings if f.kind == kind) for kind in counts}
            rows = [(kind, counts[kind], images[kind] or None, worst.get(kind)) for kind in counts]
            lines += ["", table(("kind", "findings", "images", "would corrupt a result"), rows), ""]
            lines += [printable(_line(finding)) for finding in self.findings[:FIRST]]
            if len(self.findings) > FIRST:
                lines.append(f"... and {len(self.findings) - FIRST:,} more")
        lines += ["", f"{Path(self.out) / 'report.html'} shows them, findings.jsonl beside it lists all"]
        if self.remedy is not None:
            lines.append(str(self.remedy))
        return "\n".join(lines)

    def records(self) -> Iterator[dict[str, Any]]:
        return (finding.record() for finding in self.findings)


def _line(finding: Finding) -> str:
    first = finding.paths[:3]  # one finding may be about more images than it lists
    named = ", ".join(first) + (f" and {finding.count - len(first):,} more" if first and finding.count > len(first) else "")
    where = f" [{', '.join(finding.splits)}]" if finding.splits else ""
    return f"{'!' if finding.corrupts else '-'} {finding.kind}{where} {named}{': ' if named else ''}{finding.detail}"


def _notes_of_other(against: Scan | None) -> Iterator[str]:
    if against is None:
        return
    where = against.dataset.where
    for note in against.dataset.summary():  # nothing of it becomes a finding
        named = note.startswith((f"{where}: ", f"{where.rpartition(':')[0]}: "))  # of one split, by the whole set's name
        yield note if named else f"{where}: {note}"
    if bad := len(against) - int(against.usable().sum()):
        yield f"{where}: {bad:,} images could not be read and were not compared; examine it by itself"


def examine_data(
    data: str, against: str | None, *, out: Path, fix: Path | None, preprocess: Preprocess, near: bool, workers: int
) -> Diagnosis:
    """`vitreous doctor`: the checks, the folder with their results and the manifest of `--fix`."""
    for text in (data, against):
        check_doctor_dir(out, find_data_folder(text) if text is not None else None)
    dataset = open_data(data, bad_shards="skip")  # a broken shard is a finding, and no reason to stop
    other = open_data(against, bad_shards="skip") if against is not None else None
    if fix is not None:
        check_possible(fix, dataset, out, other)
    found = diagnose(dataset, other, preprocess=preprocess, near=near, workers=workers)
    write_doctor_dir(out, found, workers)
    return replace(found, out=str(out), remedy=write_manifest(fix, found.scan, found.findings) if fix is not None else None)


def diagnose(
    dataset: Dataset, against: Dataset | None = None, *, preprocess: Preprocess, near: bool = True, workers: int = 0
) -> Diagnosis:
    seen = _scan(dataset, near, workers)
    if not len(seen):
        raise VitreousError(f"{dataset.where}: there is nothing in it to examine")
    found = [*file_findings(seen), *left_out_findings(dataset), *class_findings(seen)]
    found += image_findings(seen, find_required_size(preprocess))
    found += find_copies(seen, near=near, workers=workers)
    other = None
    if against is not None:
        other = _scan(against, near, workers)
        found += find_copies_between(seen, other, near=near, workers=workers)
    findings = sort_findings(found)
    return Diagnosis(seen, other, tuple(findings), summarise(seen, findings, other, str(preprocess)), preprocess)


def _scan(dataset: Dataset, near: bool, workers: int) -> Scan:
    with progress_bar(f"examining {dataset.where}", dataset.count()) as advance:
        return scan_dataset(dataset, workers=workers, near=near, advance=advance)


def check_doctor_dir(out: Path, data: Path | None = None) -> None:
    """Before the long work begins: the folder is new, empty or an earlier report, and not a part of the data."""
    check_result_folder(out, "summary.json", MADE_BY, FILES, data)


def write_doctor_dir(out: Path, diagnosis: Diagnosis, workers: int = 0) -> None:
    """The three files, all or none."""
    page = render_report(
        diagnosis.scan,
        diagnosis.against,
        diagnosis.findings,
        diagnosis.summary,
        make_previews(diagnosis.scan, diagnosis.preprocess),
        find_required_size(diagnosis.preprocess),
        workers,
    )
    with atomic_folder(out) as part:
        with (part / "findings.jsonl").open("w", encoding="ascii") as file:
            for finding in diagnosis.findings:
                file.write(json.dumps(finding.record()) + "\n")  # in ASCII: names need not be valid Unicode
        (part / "summary.json").write_text(json.dumps(diagnosis.summary, indent=2) + "\n", encoding="ascii")
        (part / "report.html").write_text(page, encoding="utf-8")
        check_doctor_dir(out)  # once more: files put there in the meantime must not be lost
