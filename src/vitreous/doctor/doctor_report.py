"""The doctor's report: which findings, images and numbers its page shows; it stays small however much was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vitreous.doctor.finding_types import KINDS
from vitreous.doctor.findings import Finding, RequiredSize
from vitreous.doctor.preview import Preview
from vitreous.doctor.scan import Scan
from vitreous.doctor.thumbnails import SIDE, encode_jpeg, make_thumbnails
from vitreous.reports.charts import size_chart
from vitreous.reports.images import TINY, EmbeddedImage, Figure, data_uri
from vitreous.reports.render import format_count, render

SHOWN = 100
"""Findings of one kind on the page; findings.jsonl has all."""
THUMBNAILS = 8
"""Thumbnails of one finding."""
LISTED = 40
"""Paths of one finding."""
BARS = 60
"""Classes drawn; of more, the largest and the smallest half of this number."""


def render_report(
    scan: Scan,
    against: Scan | None,
    findings: Sequence[Finding],
    summary: Mapping[str, Any],
    previews: Sequence[Preview],
    demand: RequiredSize | None,
    workers: int = 0,
) -> str:
    """The page. `demand` is the size that the preprocessing asks for."""
    usable = scan.records[scan.usable()]
    target = (demand.height, demand.width) if demand else None
    counts = {split: about["classes"] for split, about in summary["splits"].items()}
    labelled = scan.dataset.classes and any(sum(of_split.values()) for of_split in counts.values())
    return render(
        "doctor.html",
        title=f"{scan.dataset.where}: doctor’s report",
        where=scan.dataset.where,
        verdict=describe_verdict(findings),
        verdict_style="bad" if summary["corrupt"] else "good",
        facts=_facts(scan, against),
        sections=_kind_sections(scan, against, findings, workers),
        class_bars=_class_bars(counts) if labelled else None,
        sizes=size_chart(usable["width"].astype(np.int64), usable["height"].astype(np.int64), target) if len(usable) else None,
        splits=summary["splits"],
        preprocess=summary["preprocess"],
        previews=[_preview_row(scan, preview) for preview in previews],
    )


def describe_verdict(findings: Sequence[Finding]) -> str:
    worst = [finding for finding in findings if finding.corrupts]
    if worst:
        kinds = dict.fromkeys(finding.kind for finding in worst)
        return f"{format_count(len(worst), 'finding')} would corrupt a result: {', '.join(kinds)}."
    if findings:
        return "Nothing here would corrupt a result. Some findings are worth a look."
    return "No problems found."


def _facts(scan: Scan, against: Scan | None) -> str:
    parts = ", ".join(f"{split} {scan.part(split).stop - scan.part(split).start:,}" for split in scan.splits)
    named = f"{len(scan.dataset.classes):,} classes" if scan.dataset.classes else "no labels"
    compared = f"; compared with {len(against):,} images of {against.dataset.where}" if against is not None else ""
    return f"{len(scan):,} images ({parts}), {named}{compared}."


def _kind_sections(scan: Scan, against: Scan | None, findings: Sequence[Finding], workers: int) -> list[dict[str, Any]]:
    grouped = {kind: [finding for finding in findings if finding.kind == kind] for kind in KINDS}
    shown = [finding for some in grouped.values() for finding in some[:SHOWN]]
    ours = make_thumbnails(scan, (item for finding in shown for item in finding.items[:THUMBNAILS]), workers)
    theirs: dict[int, bytes] = {}
    if against is not None:
        theirs = make_thumbnails(against, (item for finding in shown for item in finding.others[:THUMBNAILS]), workers)

    def card(finding: Finding) -> dict[str, Any]:
        # Paths of the data set that was compared with come last.
        mine = [(k, scan, item, ours[item]) for k, item in enumerate(finding.items) if item in ours]
        first = len(finding.items)
        other = [(first + k, against, item, theirs[item]) for k, item in enumerate(finding.others) if item in theirs]
        shown_items = [*mine[:THUMBNAILS], *other[:THUMBNAILS]]
        figures = [_figure(source, finding, k, item, content) for k, source, item, content in shown_items if source is not None]
        left = [path for k, path in enumerate(finding.paths) if k not in {entry[0] for entry in shown_items}]
        about = (
            [] if finding.labels else [*finding.splits, *([format_count(finding.count, "image")] if finding.count > 1 else [])]
        )
        hidden = max(0, finding.count - len(figures) - len(left)) + max(0, len(left) - LISTED)
        return {
            "detail": finding.detail,
            "about": ", ".join(about),
            "figures": figures,
            "paths": left[:LISTED],
            "hidden": hidden,
        }

    return [
        {
            "kind": KINDS[kind],
            "findings": len(some),
            "images": sum(finding.count for finding in some),
            "corrupting": sum(finding.corrupts for finding in some),
            "cards": [card(finding) for finding in some[:SHOWN]],
        }
        for kind, some in grouped.items()
        if some
    ]


def _figure(scan: Scan, finding: Finding, number: int, item: int, content: bytes) -> Figure:
    path, size = finding.paths[number], _size(scan, item)
    return Figure(
        _embed(scan, item, content),
        alt=path,
        caption=path,
        label=" + ".join(finding.labels[number]) if finding.labels else "",
        about=f"{scan.where(item)[0]} · {size}" if len(finding.splits) > 1 else size,
    )


def _class_bars(counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """`counts` holds, for each split, the classes and their numbers of images.

    A bar has its number of images, and that as a share of the longest one of its split.
    """
    splits = list(counts)
    totals = {name: sum(counts[split].get(name, 0) for split in splits) for name in counts[splits[0]]}
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    shown = ranked if len(ranked) <= BARS else [*ranked[: BARS // 2], *ranked[-BARS // 2 :]]
    longest = {split: max(1, *(counts[split].get(name, 0) for name in shown)) for split in splits}
    rows = [
        {"name": name, "bars": [(n := counts[split].get(name, 0), n / longest[split]) for split in splits]} for name in shown
    ]
    hidden = len(ranked) - len(shown)
    return {"splits": splits, "rows": rows, "hidden": hidden, "gap": BARS // 2 if hidden else -1}


def _preview_row(scan: Scan, preview: Preview) -> dict[str, Any]:
    name = f"the {preview.which} image"
    figures = []
    if preview.original is not None:
        figures.append(Figure(_embed(scan, preview.item, _enlarged(preview.original)), alt=name, caption="as it is"))
    for number, outcome in enumerate(preview.outcomes, start=1):
        caption = f"draw {number}" if len(preview.outcomes) > 1 else "afterwards"
        image = EmbeddedImage(data_uri("jpeg", _enlarged(outcome)))
        figures.append(Figure(image, alt=f"{name}, {caption}", caption=caption))
    return {
        "which": preview.which,
        "size": _size(scan, preview.item),
        "scale": preview.scale,
        "id": scan.id(preview.item),
        "failure": preview.failure,
        "figures": figures,
    }


def _enlarged(image: Image.Image) -> bytes:
    return encode_jpeg(image, SIDE * 3 // 2)


def _embed(scan: Scan, item: int, content: bytes) -> EmbeddedImage:
    record = scan.records[item]
    return EmbeddedImage(data_uri("jpeg", content), pixelated=max(record["width"], record["height"]) < TINY)


def _size(scan: Scan, item: int) -> str:
    return f"{scan.records[item]['width']} × {scan.records[item]['height']}"
