"""The demo looks inside a model that it has trained, and asks a server of its own about a digit."""

from __future__ import annotations

import base64
import csv
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.classifier import load
from vitreous.commands.demo.training_steps import one_thread
from vitreous.commands.inspect import inspect
from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.core.untrusted_json import parse_json
from vitreous.inspection.distance import attention_distance

PATIENCE = 60  # seconds for one answer; the machine may be busy


@one_thread()
def looked_into(runs: Path, digits: Path, folder: Path) -> list[dict[str, Any]]:
    """A row for each way of looking. `equal` tells whether it agrees with the same thing computed in another way."""
    pictures = sorted(digits.glob("*.png"))
    with silence():
        return [_inspected(runs / "scratch", pictures[:6], folder / "inside"), *_asked(runs, pictures[0])]


def _inspected(run: Path, pictures: list[Path], out: Path) -> dict[str, Any]:
    files = [str(path) for path in pictures]
    found = inspect(str(run), files, data="builtin:digits:test", out=str(out), device="cpu").numbers
    distance = np.array(found["survey"]["distance"])
    with (out / "attention_distance.csv").open(newline="", encoding="utf-8") as file:
        written = np.array([float(row["distance"]) for row in csv.DictReader(file)]).reshape(distance.shape)
    # Shares: a rollout and what came from the class token make 1.
    rollouts = [np.load(out / "rollout" / f"{path.stem}.npy") for path in pictures]
    far = f"{distance[0].mean():.1f} pixels far in the first layer, {distance[-1].mean():.1f} in the last"
    return {
        "looked at": "inspect: rollout, distance, filters, positions, tokens, a map of the digits",
        "result": f"over {found['survey']['images']} digits heads look {far}",
        "equal": np.allclose(written, distance, atol=1e-4)
        and all(0 < float(rollout.sum()) <= 1.00001 for rollout in rollouts)
        and attention_distance(load(run), files).shape == distance.shape,
    }


def _asked(runs: Path, picture: Path) -> Iterator[dict[str, Any]]:
    """The server in a process of its own, as a user starts it; ended as a user ends it."""
    clf = load(runs / "scratch")
    expected = clf.predict(str(picture), top=3)
    content = picture.read_bytes()
    with _server([str(runs / "scratch"), "--runs", str(runs)]) as (address, process):
        answer = _request(f"{address}/predict?top=3", content)
        name, probability = answer["classes"][0], answer["probabilities"][0]
        yield {
            "looked at": "serve: POST /predict",
            "result": f"a digit is {name} with {probability:.0%}, as the checkpoint says by itself",
            "equal": answer["classes"] == list(expected.classes)
            and np.allclose(answer["probabilities"], expected.probabilities, atol=1e-5),
        }
        attention = _request(f"{address}/attention", content)
        sent = attention["attention"]
        rows = np.frombuffer(base64.b64decode(sent["data"]), np.uint8).reshape(sent["shape"]).astype(np.float64) / 255
        largest = attention["maximum"]
        rows *= np.frombuffer(base64.b64decode(largest["data"]), "<f4").reshape(largest["shape"])[..., None]
        own = clf.attention(str(picture))[:, 0].numpy()
        yield {
            "looked at": "serve: POST /attention, what the page draws from",
            "result": f"{sent['shape'][0]} layers x {sent['shape'][1]} heads x {sent['shape'][2]} tokens in one answer",
            "equal": float(np.abs(rows - own).max()) <= 1 / 500,
        }
        listed = [run["name"] for run in _request(f"{address}/runs")["runs"]]
        process.send_signal(signal.SIGTERM)
        yield {
            "looked at": "serve: GET /runs, then asked to end",
            "result": f"{len(listed)} runs with their curves; it ended by itself",
            "equal": "scratch" in listed and process.wait(PATIENCE) in (143, 1),  # Windows has no such signals
        }


@contextmanager
def _server(words: list[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "vitreous", "serve", *words, "--port", "0", "--device", "cpu"]
    settings = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings) as process:
        try:
            assert process.stdout is not None
            address = next((word for line in process.stdout for word in line.split() if word.startswith("http://")), None)
            if address is None:
                said = process.stderr.read().strip() if process.stderr else ""
                raise VitreousError(f"the demo's server did not start: {said or 'it said nothing'}")
            yield address, process
        finally:
            process.kill()


def _request(url: str, image: bytes | None = None) -> dict[str, Any]:
    """The response to GET, or to POST with an image."""
    body = None if image is None else json.dumps({"image": base64.b64encode(image).decode()}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE) as response:
        return dict(parse_json(response.read()))
