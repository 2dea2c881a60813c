"""The summary of a data set: the contents of summary.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.doctor.findings import Finding, count_findings
from vitreous.doctor.scan import Scan

MADE_BY = "vitreous doctor"  # by this a folder is known as the doctor's own


def summarise(scan: Scan, findings: Sequence[Finding], against: Scan | None, preprocess: str) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "made_by": MADE_BY,
        "version": version("vitreous"),
        "data": scan.dataset.where,
        "images": len(scan),
        "corrupt": any(finding.corrupts for finding in findings),
        "findings": count_findings(findings),
        "corrupting": count_findings(finding for finding in findings if finding.corrupts),
        "splits": {split: _summarise_split(scan, split) for split in scan.splits},
        "preprocess": preprocess,
    }
    if against is not None:
        summary["against"] = {"data": against.dataset.where, "images": len(against), "usable": int(against.usable().sum())}
    return summary


def _summarise_split(scan: Scan, split: str) -> dict[str, Any]:
    records = scan.records[scan.part(split)]
    usable = records[records["width"] > 0]
    counts = scan.sources[split].counts().tolist()
    about: dict[str, Any] = {
        "images": len(records),
        "usable": len(usable),
        "classes": dict(zip(scan.dataset.classes, counts, strict=True)),
        "formats": _counts(usable["format"]),
        "modes": _counts(usable["mode"]),
    }
    if len(usable):
        sizes = {side: usable[side].astype(np.int64) for side in ("width", "height")}
        about["sizes"] = {
            side: {"smallest": int(v.min()), "median": int(np.median(v)), "largest": int(v.max())} for side, v in sizes.items()
        }
        mean, deviation = channel_statistics(usable)
        about["channels"] = {"mean": mean, "deviation": deviation}
    return about


def _counts(values: NDArray[Any]) -> dict[str, int]:
    counts = Counter(
        {value.decode() or "pixels": int(n) for value, n in zip(*np.unique(values, return_counts=True), strict=True)}
    )
    return dict(counts.most_common())


def channel_statistics(usable: NDArray[Any]) -> tuple[list[float], list[float]]:
    """Mean and deviation of red, green and blue, 0..1, over all pixels, as if all images were of one size."""
    means, deviations = usable["mean"].astype(np.float64) / 255, usable["deviation"].astype(np.float64) / 255
    mean = means.mean(axis=0)
    deviation = np.sqrt(np.maximum((deviations**2 + means**2).mean(axis=0) - mean**2, 0))
    return [round(x, 4) for x in mean.tolist()], [round(x, 4) for x in deviation.tolist()]
