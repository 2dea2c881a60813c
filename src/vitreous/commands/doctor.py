from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.core.files import user_path
from vitreous.core.progress import progress_bar
from vitreous.core.table import table

if TYPE_CHECKING:
    from vitreous.doctor.findings import Finding
    from vitreous.doctor.fix_manifest import Remedy
    from vitreous.doctor.scan import Scan

_FIRST = 12  # findings told on the terminal


@dataclass(frozen=True)
class Examined:
    """What the doctor found."""

    out: str
    corrupt: bool
    findings: tuple[Finding, ...]
    verdict: str
    summary: dict[str, Any]
    remedy: Remedy | None
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 1 if self.corrupt else 0

    def text(self) -> str:
        from vitreous.core.printable import printable

        lines = [self.verdict]
        if self.findings:
            counts = self.summary["findings"]
            images = {kind: sum(f.count for f in self.findings if f.kind == kind) for kind in counts}
            worst = self.summary["corrupting"]
            rows = [(kind, counts[kind], images[kind] or None, worst.get(kind, 0) or None) for kind in counts]
            lines += ["", table(("kind", "findings", "images", "would corrupt a result"), rows), ""]
            lines += [printable(_line(finding)) for finding in self.findings[:_FIRST]]
            if len(self.findings) > _FIRST:
                lines.append(f"... and {len(self.findings) - _FIRST:,} more")
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


_NOT_NEAR = tyro.conf.arg(
    help="find equal files only, not re-encoded, resized, mirrored, turned, framed and slightly cropped copies.",
    help_behavior_hint="(default: these are found too)",
)


def doctor(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    out: str,
    against: str | None = None,
    fix: str | None = None,
    preprocess: str = "inception_crop(224)|flip|range(-1,1)",
    near: Annotated[bool, _NOT_NEAR] = True,
    workers: int | None = None,
) -> Examined:
    """Examine a data set: unreadable files, duplicates within and across splits, wrong labels, odd images.

    Writes a page to look at (report.html), findings.jsonl and summary.json. Exit code 1 means that something in the data
    would corrupt a result. No image is ever changed.

    Example: vitreous doctor photos/ --out report --fix photos.csv

    Args:
        data: a folder, a manifest, shards, `builtin:NAME` or the name of a known set.
        out: the folder to write to.
        against: another data set; what is in both is reported, as when pre-training data must not hold test images.
        fix: a new manifest to write (.csv or .jsonl) that leaves the bad items out; use it as DATA from then on.
        preprocess: what training will do to the images; shown for the smallest and the largest.
        near: whether to find changed copies too (re-encoded, mirrored, turned, framed ...), or equal files only.
        workers: processes that read; as many as there are cores if not given, 0 for none.
    """
    from vitreous.core.errors import VitreousError
    from vitreous.core.output_dir import find_data_folder
    from vitreous.data.loading.workers import default_workers
    from vitreous.data.open import open_data
    from vitreous.data.transforms.parse import Preprocess
    from vitreous.doctor.diagnosis import check_doctor_dir, diagnose, write_doctor_dir
    from vitreous.doctor.doctor_report import verdict
    from vitreous.doctor.fix_manifest import check_possible, write_manifest

    if workers is not None and workers < 0:
        raise VitreousError(f"--workers {workers}: must be 0 (none) or more")
    prepared = Preprocess(preprocess)
    folder = user_path(out)
    for text in (data, against):
        check_doctor_dir(folder, find_data_folder(text) if text is not None else None)
    dataset = open_data(data, bad_shards="skip")  # a broken shard is a finding, and no reason to stop
    other = open_data(against, bad_shards="skip") if against is not None else None
    target = user_path(fix) if fix is not None else None
    if target is not None:
        check_possible(target, dataset, folder, other)
    processes = default_workers() if workers is None else workers
    found = diagnose(dataset, other, preprocess=prepared, near=near, workers=processes, shown=progress_bar)
    write_doctor_dir(folder, found, processes)
    remedy = write_manifest(target, found.scan, found.findings) if target is not None else None
    notes = [dataset.describe(), *dataset.notes, *_notes_of_other(found.against)]  # what was left out is among the findings
    return Examined(str(folder), found.corrupt, found.findings, verdict(found.findings), found.summary, remedy, tuple(notes))


def _notes_of_other(against: Scan | None) -> Iterator[str]:
    if against is None:
        return
    where = against.dataset.where
    for note in against.dataset.summary():  # nothing of it becomes a finding
        named = note.startswith((f"{where}: ", f"{where.rpartition(':')[0]}: "))  # of one split, by the whole set's name
        yield note if named else f"{where}: {note}"
    if bad := len(against) - int(against.usable().sum()):
        yield f"{where}: {bad:,} images could not be read and were not compared; examine it by itself"
