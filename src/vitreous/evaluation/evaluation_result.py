"""The result of `vitreous evaluate`: every number, and what the terminal shows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.core.printable import printable
from vitreous.core.table import table
from vitreous.evaluation.accuracy import worst_classes
from vitreous.evaluation.calibration import describe_confidence_gap
from vitreous.evaluation.coverage import describe_coverage
from vitreous.evaluation.majority import beats_majority

_SHOWN = 5  # of the worst classes and of the most confused pairs
_MATRIX = 12  # classes up to which the whole confusion matrix is shown
_COLUMNS = 80  # that a terminal has at least


@dataclass(frozen=True)
class EvaluationResult:
    """What a checkpoint is worth on some data."""

    numbers: Mapping[str, Any]
    out: str | None = None
    notes: tuple[str, ...] = ()
    exit_code: int = 0

    def text(self) -> str:
        own, other = self.numbers, self.numbers.get("compare")
        both = [own] if other is None else [own, other]
        rows = [_summary(one) for one in both]
        lines = [
            table(
                ("", *(one["checkpoint"] for one in both)), [(name, *(row.get(name, "-") for row in rows)) for name in rows[0]]
            )
        ]
        if other is not None:
            lines += [other["sentence"], ""]
        if "per_data_class" in own:
            lowest = sorted(own["per_data_class"], key=lambda row: (row["recall"], -row["n"]))[:_SHOWN]
            cells = [(printable(row["class"]), _percent(row["recall"]), row["n"]) for row in lowest]
            lines.append(table(("lowest recall", "recall", "images"), cells))
        else:
            worst = [
                (printable(row["class"]), *(_percent(row[key]) for key in ("precision", "recall", "f1")), row["n"])
                for row in worst_classes(own, _SHOWN)
            ]
            lines.append(table(("lowest F1", "precision", "recall", "F1", "images"), worst))
        pairs = [(printable(pair["class"]), printable(pair["taken_for"]), pair["n"]) for pair in own["confused"][:_SHOWN]]
        if matrix := confusion_matrix(own):
            lines.append(matrix)
        elif pairs:
            lines.append(table(("most confused", "predicted as", "images"), pairs))
        if strength := own.get("robustness"):
            lines.append(table((f"robustness ({strength['n']:,} images)", "accuracy at each strength"), _curves(strength)))
        if saved := own.get("calibration"):
            lines.append(f"{saved['saved']}: calibrated on {saved['n']:,} images; measure it on others with --coverage 0.9")
        if self.out is not None:
            lines.append(
                f"{Path(self.out) / 'report.html'} shows the images; evaluation.json and predictions.csv lie beside it"
            )
        return "\n".join(lines)

    def records(self) -> Iterator[dict[str, Any]]:
        yield dict(self.numbers)


def _summary(numbers: Mapping[str, Any]) -> dict[str, str]:
    """The summary, line by line."""
    ends = {name: f" ({100 * low:.2f} to {100 * high:.2f})" for name, (low, high) in numbers["intervals"].items()}
    real = numbers.get("real")
    rate, alone = numbers["images_per_second"], numbers["model_images_per_second"]
    rows = {
        "images": f"{numbers['n']:,} of {numbers['data']} {numbers['split']}",
        **describe_changes(numbers),
        "top-1": _percent(numbers["top1"]) + ends["top1"],
        "top-5": "-" if numbers["top5"] is None else _percent(numbers["top5"]) + ends["top5"],
        "mean recall of the classes": _percent(numbers["mean_per_class"]["recall"]) + ends.get("mean_recall", ""),
        "largest class alone": _percent(numbers["majority"])
        + ("" if beats_majority(numbers["top1"], numbers["majority"]) else "; the model is no better"),
        "loss": f"{numbers['loss']:.4g}",
        "calibration error (ECE)": f"{_percent(numbers['ece'])}; "
        + describe_confidence_gap(numbers["confidence"], numbers["top1"]),
        "images per second": f"{rate or 0:,.0f} (the model alone {alone or 0:,.0f})",
    }
    if "coverage" in numbers:
        rows["coverage of prediction sets"] = describe_coverage(numbers["coverage"])
    if real is not None:
        low, high = real["interval"]
        rows["ReaL"] = f"{_percent(real['top1'])} ({100 * low:.2f} to {100 * high:.2f}) of {real['n']:,}"
    return rows


def describe_changes(numbers: Mapping[str, Any]) -> dict[str, str]:
    """What makes a result more than that of one checkpoint in one pass; nothing, unless it was asked for."""
    found = {}
    if numbers.get("tta"):
        found["test-time augmentation"] = "outputs are means of each image's and its mirror image's"
    if numbers.get("soup"):
        found["soup"] = f"weights are the average of {len(numbers['soup'])} checkpoints"
    return found


def confusion_matrix(numbers: Mapping[str, Any]) -> str | None:
    """Classes as rows, predictions as columns, and the accuracy of each class; None where there are too many classes."""
    if numbers["confusion"] is None or "per_data_class" in numbers:
        return None
    counted = [sum(column) for column in zip(*numbers["confusion"], strict=True)]
    used = [k for k, row in enumerate(numbers["per_class"]) if row["n"] or counted[k]]
    if len(used) > _MATRIX:
        return None
    names = [printable(numbers["classes"][k]) for k in used]
    rows = [(name, [_compact(numbers["confusion"][k][j]) for j in used], k) for name, k in zip(names, used, strict=True)]
    widest = max(len(cell) for _, cells, _ in rows for cell in cells)
    each = max(widest, (_COLUMNS - 8 - min(16, max(map(len, names)))) // len(used) - 1)
    heads = [_shortened(name, each) for name in names]
    if len(set(heads)) < len(heads):  # too much alike: by numbers, then
        heads, names = [str(k + 1) for k in range(len(used))], [f"{k + 1} {name}" for k, name in enumerate(names)]
    room = _COLUMNS - 8 - sum(1 + max(widest, len(head)) for head in heads)
    shown = [
        (_shortened(name, room), *cells, f"{100 * numbers['per_class'][k]['recall']:.1f}")
        for name, (_, cells, k) in zip(names, rows, strict=True)
        if numbers["per_class"][k]["n"]
    ]
    title = "confusion matrix: true classes as rows, predictions as columns"
    return f"{title}\n{table(('', *heads, 'acc. %'), shown, dense=True)}"


def _compact(count: int) -> str:
    """In at most four letters, of less than a thousand million."""
    if count < 10_000:
        return str(count or "·")
    return f"{count // 1000}k" if count < 1_000_000 else f"{count // 1_000_000}M"


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: max(1, most - 1)] + "…"


def _curves(strength: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "as they are", f"{100 * strength['clean']['accuracy']:.1f} %"
    for curve in strength["curves"]:
        points = (f"{point['strength']:g}: {100 * point['accuracy']:.1f} %" for point in curve["points"])
        yield curve["along"], ", ".join(points)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
