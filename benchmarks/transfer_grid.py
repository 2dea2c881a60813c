"""Does `vitreous finetune` by its defaults come within a point of the best that `--train` and `--set lr` would have given?

    python benchmarks/transfer_grid.py photos/ --from CHECKPOINT --minutes 15 --out grid.jsonl

Trains by the defaults, and with head, lora and all at a third of their default rate, at it and at three times it; every run is
of the same minutes of the processor, on one thread. DATA needs a validation split, which chooses, and a test split, which is
reported. Runs that OUT has already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import vitreous
from vitreous.core.table import table
from vitreous.training import timing

FACTORS = (1 / 3, 1.0, 3.0)


def train(data: str, start: str, minutes: float, size: int | None, **options: Any) -> dict[str, Any]:
    before = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        run = vitreous.finetune(
            data, from_=start, out=out, minutes=minutes, image_size=size and (size, size), workers=0, test="test", **options
        )
        config = json.loads((Path(out) / "config.json").read_text())
        lines = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    recipe = config["recipe"]
    validation = [line["top1"] for line in lines if line["split"] == "validation"]
    return {
        "image_size": config["model"]["image_size"][0],
        **{name: recipe[name] for name in ("train", "lr", "optimizer")},
        "steps": run.steps,
        "closed_form": validation[0],
        "validation": max(validation),
        "test": run.result["test"]["top1"],
        "n": run.result["test"]["n"],
        "cpu_seconds": round(time.process_time() - before, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--from", dest="start", required=True)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--out", type=Path, default=Path("grid.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    timing.time.perf_counter = time.process_time  # type: ignore[attr-defined]  # minutes of the processor
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []

    def run(name: str, **chosen: Any) -> dict[str, Any]:
        found = next((row for row in done if row["run"] == name), None)
        if found is None:
            size = done[0]["image_size"] if done else options.image_size
            found = {"run": name, **train(options.data, options.start, options.minutes, size, **chosen)}
            done.append(found)
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
        return found

    default = run("defaults")
    for how in ("lora", "all", "head"):
        # The defaults are one of the three: their rate is not trained at again.
        middle = default if how == default["train"] else run(f"{how} x 1", train=how)
        for factor in FACTORS:
            if factor != 1:
                run(f"{how} x {factor:.2g}", train=how, set=(f"lr={middle['lr'] * factor:.2g}",))
    rows = sorted(done, key=lambda row: -row["validation"])
    cells = [
        (row["run"], f"{row['lr']:g}", row["steps"], f"{row['validation']:.1%}", f"{row['test']:.1%}", row["cpu_seconds"])
        for row in rows
    ]
    print(table(("run", "lr", "steps", "validation", "test", "CPU seconds"), cells))


if __name__ == "__main__":
    main()
