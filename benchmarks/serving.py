"""Load on `vitreous serve`: many clients at once on loopback. Nothing but 200 and 503 may come, and memory stays flat.

    python benchmarks/serving.py [--clients 64] [--seconds 60] [--checkpoint CHECKPOINT] [--rounds 3]

Every client keeps one connection, sends a JPEG of 500 x 375 to /predict, waits for the answer and sends again; after 503 it
comes back when the server says. Then the same without batching (--max-batch 1), in turns of a few seconds each: a shared
machine is noisy, so only compare within one run, and where others use the processor too, by its time for an image rather than
by the clock. Without --checkpoint a ViT-Ti/16 with random weights is served.

Exits with 1 if anything else than 200 or 503 came.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitreous.bench.serving_load import Load
from vitreous.bench.serving_load import clients as run_clients


def pace(load: Load) -> float:
    return load.statuses["200"] / load.lasted


def percentile(load: Load, share: float) -> float:
    return float(np.quantile(load.seconds, share)) if load.seconds else float("nan")


def random_checkpoint(folder: Path) -> str:
    import torch

    import vitreous
    from vitreous.classifier import Classifier
    from vitreous.weights.checkpoint import Checkpoint

    torch.manual_seed(0)
    model = vitreous.create("ViT-Ti/16", classes=1000)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    preprocess = "resize_small(256)|central_crop(224)|range(-1,1)"
    Classifier(Checkpoint(config=model.config, tensors=tensors, preprocess=preprocess, classes=None)).save(folder / "tiny")
    return str(folder / "tiny")


def photograph() -> bytes:
    """500 x 375, smooth like a photograph: about 30 KB."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


@contextmanager
def server(checkpoint: str, max_batch: int, queue: int) -> Iterator[str]:
    command = [sys.executable, "-m", "vitreous", "serve", checkpoint, "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--max-batch", str(max_batch), "--queue", str(queue)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        if process.wait(60) != 143:
            raise SystemExit(f"the server ended with {process.returncode} after SIGTERM, not with 143")


def metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+) ([0-9.e+]+)$", text, re.MULTILINE)}


async def clients(url: str, count: int, seconds: float) -> Load:
    return await run_clients(url.removeprefix("http://"), photograph(), count, seconds)


@dataclass(frozen=True)
class Cost:
    """What the server did meanwhile, by its own account."""

    batch: float  # images, on average
    processor: float  # seconds of the processor for an image, HTTP and decoding included


def cost(before: dict[str, float], after: dict[str, float]) -> Cost:
    def more(name: str) -> float:
        return after[name] - before[name]

    images = max(1.0, more("vitreous_images_total"))
    return Cost(images / max(1.0, more("vitreous_batch_images_count")), more("process_cpu_seconds_total") / images)


def long_run(url: str, count: int, seconds: float) -> tuple[Load, list[tuple[float, float]], Cost]:
    """The load, memory in MB at several times, and what it cost."""

    async def both() -> tuple[Load, list[tuple[float, float]]]:
        began, memory = time.perf_counter(), []

        async def watch() -> None:
            for when in sorted({0.0, min(10.0, seconds / 2), seconds / 2, seconds}):
                await asyncio.sleep(max(0.0, began + when - time.perf_counter()))
                now = await asyncio.to_thread(metrics, url)
                memory.append((time.perf_counter() - began, now["process_resident_memory_bytes"] / 1e6))

        load, _ = await asyncio.gather(clients(url, count, seconds), watch())
        return load, memory

    before = metrics(url)
    load, memory = asyncio.run(both())
    return load, memory, cost(before, metrics(url))


def show(name: str, load: Load, spent: Cost) -> None:
    latency = "  ".join(f"p{round(100 * share)} {1000 * percentile(load, share):,.0f} ms" for share in (0.5, 0.95, 0.99))
    statuses = "  ".join(f"{status}: {count:,}" for status, count in sorted(load.statuses.items()))
    processor = f"{1000 * spent.processor:.1f} ms of the processor an image"
    print(f"{name:<9}{pace(load):7,.1f} images/s  {processor}  mean batch {spent.batch:.1f}  {latency}  {statuses}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--checkpoint")
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison without batching; 0 leaves it out")
    parser.add_argument("--turn", type=float, default=6, help="seconds of a turn in the comparison")
    options = parser.parse_args()

    statuses: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = options.checkpoint or random_checkpoint(Path(folder))
        with server(checkpoint, options.max_batch, options.queue) as batched:
            asyncio.run(clients(batched, options.clients, 2))  # what is slow once
            load, memory, spent = long_run(batched, options.clients, options.seconds)
            show(f"{options.seconds:g} s", load, spent)
            print("memory   " + "  ".join(f"{value:,.0f} MB at {when:.0f} s" for when, value in memory))
            settled, last = memory[1][1], memory[-1][1]
            print(f"growth after {memory[1][0]:.0f} s: {last - settled:+,.1f} MB ({(last - settled) / settled:+.1%})")
            statuses += load.statuses
            if options.rounds:
                with server(checkpoint, 1, options.queue) as single:
                    statuses += compared(batched, single, options.clients, options.rounds, options.turn, options.max_batch)
    bad = {status: count for status, count in statuses.items() if status not in ("200", "503")}
    if bad:
        print(f"answers other than 200 and 503: {bad}")
    return 1 if bad or not statuses["200"] else 0


def compared(batched: str, single: str, count: int, rounds: int, seconds: float, max_batch: int) -> Counter[str]:
    statuses: Counter[str] = Counter()
    faster, cheaper = [], []
    asyncio.run(clients(single, count, 2))
    both = [(f"batch {max_batch}", batched), ("batch 1", single)]
    for turn in range(rounds):
        seen: dict[str, tuple[float, float]] = {}
        for name, url in both if turn % 2 == 0 else both[::-1]:  # nobody is always first
            before = metrics(url)
            load = asyncio.run(clients(url, count, seconds))
            spent = cost(before, metrics(url))
            show(name, load, spent)
            seen[url], statuses = (pace(load), spent.processor), statuses + load.statuses
        faster.append(seen[batched][0] / seen[single][0])
        cheaper.append(seen[single][1] / seen[batched][1])
    for words, ratios in (("images in the same time", faster), ("images for the same time of the processor", cheaper)):
        print(
            f"with batching {statistics.median(ratios):.2f} times the {words} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )
    return statuses


if __name__ == "__main__":
    sys.exit(main())
