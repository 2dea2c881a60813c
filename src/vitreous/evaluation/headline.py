"""The headline of a report: accuracy, its interval, and what always predicting the largest class would score."""

from __future__ import annotations


def accuracy_headline(
    top1: float, n: int, split: str, interval: tuple[float, float], top5: float | None, majority: float | None
) -> str:
    """`top5` and `majority` are None where they say nothing or are not known."""
    low, high = interval
    parts = [f"{100 * top1:.2f} % of {n:,} {split} images correct (95 % interval {100 * low:.2f} to {100 * high:.2f})"]
    if top5 is not None:
        parts.append(f"top-5 accuracy {100 * top5:.2f} %")
    if majority is not None:
        parts.append(f"always predicting the largest class: {100 * majority:.2f} %")
    return "; ".join(parts) + "."
