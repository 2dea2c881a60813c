"""Counters and histograms in Prometheus' text format, which is a page of code; its client library is another package.

Labels are this server's own words, such as the patterns of its routes: a caller who could choose one could fill the memory.
"""

from __future__ import annotations

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

    def lines(self, labels: str = "") -> Iterator[str]:
        """Its samples, without the name."""
        so_far, comma = 0, "," if labels else ""
        for edge, count in zip((*self.edges, "+Inf"), self.counts, strict=True):
            so_far += count
            yield f'_bucket{{{labels}{comma}le="{edge}"}} {so_far}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"_sum{braces} {self.sum:.6f}"
        yield f"_count{braces} {so_far}"


class Metrics:
    """Of one server. Counted in the event loop only, so that it needs no lock."""

    def __init__(self) -> None:
        self._began = time.time()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches = Histogram(SIZES)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests[route, status] += 1
        self._seconds.setdefault(route, Histogram(SECONDS)).observe(seconds)

    def ran(self, size: int) -> None:
        self._batches.observe(size)

    @property
    def requests(self) -> int:
        return self._requests.total()

    @property
    def images(self) -> int:
        return int(self._batches.sum)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Everything counted so far, and values of the moment: name -> what it is, value."""
        refused = sum(count for (_, status), count in self._requests.items() if status == 503)
        requests = [f'{{path="{route}",status="{status}"}} {n}' for (route, status), n in sorted(self._requests.items())]
        seconds = [line for route, one in sorted(self._seconds.items()) for line in one.lines(f'path="{route}"')]
        memory = memory_in_use(torch.device("cpu"))
        # Name, type, what it is, and its samples without the name.
        families: list[tuple[str, str, str, list[str]]] = [
            ("vitreous_requests_total", "counter", "requests answered", requests),
            ("vitreous_refused_total", "counter", "requests answered with 503: too much to do", [f" {refused}"]),
            ("vitreous_request_seconds", "histogram", "from a request's headers to the end of its answer", seconds),
            ("vitreous_batch_images", "histogram", "images that the model ran at once", list(self._batches.lines())),
            ("vitreous_images_total", "counter", "images that the model ran", [f" {self.images}"]),
            ("process_cpu_seconds_total", "counter", "CPU time of all threads", [f" {time.process_time():.6f}"]),
            *((name, "gauge", what, [f" {value:.15g}"]) for name, (what, value) in gauges.items()),
            ("process_resident_memory_bytes", "gauge", "memory of this process", [f" {memory:.15g}"]),
            ("process_start_time_seconds", "gauge", "when it began, since 1970", [f" {self._began:.15g}"]),
        ]
        lines = []
        for name, kind, what, samples in families:
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}", *(f"{name}{sample}" for sample in samples)]
        return "\n".join(lines) + "\n"
