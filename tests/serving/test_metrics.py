"""Counts in Prometheus' text format, whose rules are checked by hand: types, labels, cumulative buckets."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path

import pytest
from small_server import client, loaded, picture, post

from vitreous.serving.metrics import Histogram, Metrics

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="[^"\\\n]*",?)*)\})? ([-+0-9.eE]+|\+Inf)')


def read(text: str) -> dict[str, dict[str, float]]:
    """Metric -> labels -> value. Every line is a known kind of line, and every metric has one type and one help."""
    assert text.endswith("\n")
    found: dict[str, dict[str, float]] = defaultdict(dict)
    types: dict[str, str] = {}
    helped: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types
            types[name] = kind
        elif line.startswith("# HELP "):
            helped.append(line.split(" ")[2])
        else:
            match = LINE.fullmatch(line)
            assert match, line
            base = re.sub("_(bucket|sum|count)$", "", match[1])
            assert types.get(match[1]) in ("counter", "gauge") or types.get(base) == "histogram", line
            assert (match[2] or "") not in found[match[1]], line
            found[match[1]][match[2] or ""] = float(match[3])
    assert helped == list(types)
    return found


def test_buckets_are_cumulative_and_their_edges_belong_to_them() -> None:
    made = Histogram((1, 2, 4))
    for value in (0.5, 1, 1.5, 2, 3, 100):
        made.observe(value)
    lines = list(made.lines('a="b"'))
    assert lines == [
        '_bucket{a="b",le="1"} 2',
        '_bucket{a="b",le="2"} 4',
        '_bucket{a="b",le="4"} 5',
        '_bucket{a="b",le="+Inf"} 6',
        '_sum{a="b"} 108.000000',
        '_count{a="b"} 6',
    ]


def test_what_is_counted_is_reported() -> None:
    made = Metrics()
    for status, seconds in ((200, 0.02), (200, 7.0), (503, 0.001)):
        made.answered("/predict", status, seconds)
    made.answered("other", 404, 0.0)
    for size in (1, 16, 3):
        made.ran(size)
    found = read(made.text({"vitreous_queue_length": ("waiting", 3.0)}))
    assert found["vitreous_requests_total"] == {
        'path="/predict",status="200"': 2,
        'path="/predict",status="503"': 1,
        'path="other",status="404"': 1,
    }
    assert found["vitreous_refused_total"][""] == 1
    assert found["vitreous_request_seconds_count"]['path="/predict"'] == 3
    assert found["vitreous_request_seconds_sum"]['path="/predict"'] == pytest.approx(7.021)
    assert found["vitreous_request_seconds_bucket"]['path="/predict",le="0.025"'] == 2
    assert found["vitreous_batch_images_count"][""] == 3
    assert found["vitreous_images_total"][""] == 20 == made.images
    assert found["vitreous_queue_length"][""] == 3
    assert made.requests == 4


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc on this system")
def test_the_memory_is_what_the_system_says() -> None:
    own = read(Metrics().text({}))["process_resident_memory_bytes"][""]
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match
    assert own == pytest.approx(int(match[1]) * 1024, rel=0.2)


def test_labels_are_never_the_callers_words() -> None:
    with client(loaded()) as served:
        for number in range(20):
            served.get(f"/nothing/{number}")
            served.get(f"/page/{number}.js")
            served.get(f"/examples/{number}")
            served.get(f"/models/{number}/positions")
            served.get(f"/runs/{number}")
            served.request(f"FOO{number}", "/predict")
            served.post(f"/predict?model=m{number}")
        post(served, "/predict", picture())
        found = read(served.get("/metrics").text)
    paths = {re.sub('.*path="([^"]*)".*', r"\1", labels) for labels in found["vitreous_requests_total"]}
    expected = {"other", "/page/{file}", "/examples/{name}", "/models/{name}/positions", "/runs/{name}", "/predict"}
    assert paths == expected
    assert found["vitreous_requests_total"]['path="/predict",status="200"'] == 1
    assert found["vitreous_images_total"][""] == 1
    assert found["process_start_time_seconds"][""] > 1.7e9
    assert all(math.isfinite(value) for values in found.values() for value in values.values())
