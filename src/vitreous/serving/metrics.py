"""Counters and histograms in Prometheus' text format, which is a page of code; its client library is another package.

Labels are this server's own words, such as the patterns of its routes: a caller who could choose one could fill the memory.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

import torch

from vitreous.training.progress_display import memory_in_use

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges, self.counts, self.sum = edges, [0] * (len(edges) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        so_far, comma = 0, "," if labels else ""
        for edge, count in zip((*self.edges, "+Inf"), self.counts, strict=True):
            so_far += count
            yield f'{name}_bucket{{{labels}{comma}le="{edge}"}} {so_far}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.sum:.6f}"
        yield f"{name}_count{braces} {so_far}"


class Metrics:
    """Counted by the thread that answers and by the one that runs the model."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.time()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches = Histogram(SIZES)

    def answered(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[route, status] += 1
            self._seconds.setdefault(route, Histogram(SECONDS)).observe(seconds)

    def ran(self, size: int) -> None:
        with self._lock:
            self._batches.observe(size)

    @property
    def requests(self) -> int:
        return self._requests.total()

    @property
    def images(self) -> int:
        return int(self._batches.sum)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Everything counted so far, and values of the moment: name -> what it is, value."""
        with self._lock:
            return "\n".join([*self._counted(), *self._now(gauges)]) + "\n"

    def _counted(self) -> Iterator[str]:
        yield from _head("vitreous_requests_total", "counter", "requests answered")
        for (route, status), count in sorted(self._requests.items()):
            yield f'vitreous_requests_total{{path="{route}",status="{status}"}} {count}'
        yield from _head("vitreous_refused_total", "counter", "requests answered with 503 because there was too much to do")
        yield f"vitreous_refused_total {sum(count for (_, status), count in self._requests.items() if status == 503)}"
        yield from _head("vitreous_request_seconds", "histogram", "from a request's headers to the end of its answer")
        for route, histogram in sorted(self._seconds.items()):
            yield from histogram.lines("vitreous_request_seconds", f'path="{route}"')
        yield from _head("vitreous_batch_images", "histogram", "images that the model ran at once")
        yield from self._batches.lines("vitreous_batch_images")
        yield from _head("vitreous_images_total", "counter", "images that the model ran")
        yield f"vitreous_images_total {int(self._batches.sum)}"
        yield from _head("process_cpu_seconds_total", "counter", "time of the processor, of all threads")
        yield f"process_cpu_seconds_total {time.process_time():.6f}"

    def _now(self, gauges: Mapping[str, tuple[str, float]]) -> Iterator[str]:
        own: dict[str, tuple[str, float]] = {
            "process_resident_memory_bytes": ("memory of this process", memory_in_use(torch.device("cpu"))),
            "process_start_time_seconds": ("when it began, since 1970", self._began),
        }
        for name, (what, value) in {**gauges, **own}.items():
            yield from _head(name, "gauge", what)
            yield f"{name} {value:.15g}"


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
