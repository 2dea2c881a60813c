"""Run all data checks on a data set and write the folder with findings, summary and report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_folder
from vitreous.core.output_dir import check_result_folder
from vitreous.data.source import Dataset
from vitreous.data.transforms.parse import Preprocess
from vitreous.doctor.doctor_report import render_report
from vitreous.doctor.duplicate_findings import Shown, find_copies, find_copies_between, no_progress
from vitreous.doctor.findings import (
    Finding,
    class_findings,
    file_findings,
    image_findings,
    left_out_findings,
    sort_findings,
)
from vitreous.doctor.preview import find_required_size, make_previews
from vitreous.doctor.scan import Scan, scan_dataset
from vitreous.doctor.summary import MADE_BY, summarise

FILES = ("findings.jsonl", "summary.json", "report.html")


@dataclass(frozen=True, eq=False)
class Diagnosis:
    scan: Scan
    against: Scan | None
    findings: tuple[Finding, ...]
    summary: dict[str, Any]
    preprocess: Preprocess

    @property
    def corrupt(self) -> bool:
        return any(finding.corrupts for finding in self.findings)


def diagnose(
    dataset: Dataset,
    against: Dataset | None = None,
    *,
    preprocess: Preprocess,
    near: bool = True,
    workers: int = 0,
    shown: Shown = no_progress,
) -> Diagnosis:
    with shown(f"examining {dataset.where}", dataset.count()) as advance:
        seen = scan_dataset(dataset, workers=workers, near=near, advance=advance)
    if not len(seen):
        raise VitreousError(f"{dataset.where}: there is nothing in it to examine")
    found = [*file_findings(seen), *left_out_findings(dataset), *class_findings(seen)]
    found += image_findings(seen, find_required_size(preprocess))
    found += find_copies(seen, near=near, workers=workers, shown=shown)
    other = None
    if against is not None:
        with shown(f"examining {against.where}", against.count()) as advance:
            other = scan_dataset(against, workers=workers, near=near, advance=advance)
        found += find_copies_between(seen, other, near=near, workers=workers, shown=shown)
    findings = sort_findings(found)
    return Diagnosis(seen, other, tuple(findings), summarise(seen, findings, other, str(preprocess)), preprocess)


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
        check_doctor_dir(out)  # once more: what somebody has put there in the meantime must not be lost
