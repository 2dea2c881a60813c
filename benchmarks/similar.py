"""One query through a file of features, `vitreous similar`, against a NumPy search that loads and normalises everything first.

    python benchmarks/similar.py [--images 1000000] [--width 384] [--runs 3] [--folder /tmp]

Each search runs in a process of its own, in turn, so that a busy machine slows both, and prints the seconds from the opened
file to the result and the largest memory of its process, imports included. Both must find the same rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

OURS = """
import json, resource, sys, time
from pathlib import Path
from vitreous.inference.similar_run import SimilarOptions, run_similar
began = time.perf_counter()
options = SimilarOptions(file=Path(sys.argv[1]), images=["image-0000007"], top=10, clusters=None, seed=0, out=None, data=None,
                         checkpoint=None, device="cpu")
found = [match.row for match in run_similar(options, None).matches["image-0000007"]]
print(json.dumps([time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, found]))
"""
THEIRS = """
import json, resource, sys, time
import numpy as np
from safetensors.numpy import load_file
began = time.perf_counter()
values = load_file(sys.argv[1])["features"]
values /= np.linalg.norm(values, axis=1, keepdims=True)
found = [row for row in np.argsort(-(values @ values[7]))[:11].tolist() if row != 7]
print(json.dumps([time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, found]))
"""


def write_file(path: Path, images: int, width: int) -> None:
    from vitreous.inference.feature_file import Features, write_features

    values = np.random.default_rng(0).standard_normal((images, width), np.float32)
    ids = tuple(f"image-{row:07}" for row in range(images))
    features = Features(values, ((0,),) * images, ids, np.arange(images), ("class",))
    write_features(path, features, {"classes": ["class"], "data": ""}, "train")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    options = parser.parse_args()
    path = options.folder / f"features-{options.images}-{options.width}.safetensors"
    if not path.exists():
        write_file(path, options.images, options.width)
    size = path.stat().st_size
    print(f"{options.images:,} x {options.width}: {size / 1e9:.2f} GB")
    rows = set()
    for _ in range(options.runs):
        for name, program in (("vitreous similar", OURS), ("load, normalise, matmul", THEIRS)):
            done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
            seconds, memory, found = json.loads(done.stdout)
            rows.add(tuple(found))
            print(f"{name:<24} {seconds:6.2f} s  {memory / 1e9:.2f} GB, {memory / size:.2f} times the file", flush=True)
    print("the same rows" if len(rows) == 1 else f"different rows: {rows}")


if __name__ == "__main__":
    main()
