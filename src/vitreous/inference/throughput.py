"""Throughput of a stream of unknown length on stderr: `predict: 12,800 images, 341 images/s`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

from vitreous.core.progress import INTERVAL, is_silent
from vitreous.inference.rows import Row

_SOON = 0.5  # seconds between two states of the line on a terminal


def report_throughput(batches: Iterator[Sequence[Row]], before: int = 0) -> Iterator[Sequence[Row]]:
    """The same batches, with progress printed: in place on a terminal, as a plain line now and then elsewhere.

    `before` rows were there already and do not count for the throughput.
    """
    if is_silent():
        yield from batches
        return
    terminal = sys.stderr.isatty()
    began = last = time.monotonic()
    done = errors = 0
    try:
        for batch in batches:
            yield batch
            done += len(batch)
            errors += sum(row.error is not None for row in batch)
            now = time.monotonic()
            if now - last >= (_SOON if terminal else INTERVAL):
                last = now
                text = _line(before + done, done / (now - began), errors)
                print(f"\r{text}\033[K" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)
    finally:
        if terminal and last != began:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _line(done: int, speed: float, errors: int) -> str:
    bad = f", {errors:,} could not be read" if errors else ""
    return f"predict: {done:,} images, {speed:,.3g} images/s{bad}"
