"""Kill a run at random moments, start it again, and compare the result with that of an undisturbed run, byte for byte.

    python benchmarks/kills.py --kills 20

Each run is killed with SIGKILL at a moment drawn by chance, also while it starts, evaluates or saves.
Everything that goes by chance is on: augmentation, mixup, dropout, stochastic depth; so are averaging and accumulation.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHANGES = "model.width=32,model.depth=2,model.heads=2,model.mlp=64,model.stochastic_depth=0.1,dropout=0.1,mixup=0.2,average=0.9"
OPTIONS = ["--model", "ViT-Ti/2", "--set", CHANGES, "--micro-batch", "16", "--batch-size", "64", "--workers", "1"]
OPTIONS += ["--save-every", "7", "--eval-every", "20", "--precision", "float32", "--device", "cpu", "--quiet"]


def command(out: Path, steps: int, processes: int) -> list[str]:
    launch = [sys.executable, "-m"]
    if processes > 1:
        launch += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    return [*launch, "vitreous", "pretrain", "builtin:digits", *OPTIONS, "--steps", str(steps), "--out", str(out)]


def digests(out: Path) -> tuple[str, ...]:
    names = ("model.safetensors", "best/model.safetensors", "raw/model.safetensors")
    return tuple(hashlib.sha256((out / "checkpoint" / name).read_bytes()).hexdigest()[:16] for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        began = time.monotonic()
        subprocess.run(command(whole, options.steps, options.processes), env=environment, check=True, stderr=subprocess.DEVNULL)
        seconds, wanted = time.monotonic() - began, digests(whole)
        print(f"undisturbed: {seconds:.1f} s, {wanted[0]}", flush=True)
        equal = 0
        for number in range(options.kills):
            out = Path(folder) / f"run-{number}"
            words = command(out, options.steps, options.processes)
            while True:
                process = subprocess.Popen(words, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
                time.sleep(rng.uniform(0.15, 1.0) * seconds)
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.wait()
                    break
                shutil.rmtree(out)  # it was faster than the undisturbed one, and had finished: once more, sooner
                seconds *= 0.8
            states = sorted(path.name for path in (out / "state").glob("step-*"))
            subprocess.run(words, env=environment, check=True, stderr=subprocess.DEVNULL)
            found = digests(out)
            equal += found == wanted
            steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
            where = f"with {states[-1] if states else 'no state yet'}"
            verdict = "the same" if found == wanted else "DIFFERS"
            print(f"kill {number + 1:2}: {where:30} {found[0]} {verdict}; {len(steps)} records, last {steps[-1]}", flush=True)
        print(f"{equal} of {options.kills} identical (result, best and average)")


if __name__ == "__main__":
    main()
