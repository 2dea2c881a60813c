"""Time and memory to index a folder of many files, beside torchvision's ImageFolder, each in a process of its own.

    python benchmarks/indexing.py [--files 1000000] [--folders 1000]

The files are empty: neither reads them. "again" is a second opening, from the cached index.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

START = """
import resource, sys, time, os
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
"""
OURS = """
from vitreous.data.open import open_data
import vitreous.data.sources.folder
before, start = resident(), time.perf_counter()
data = open_data(sys.argv[1])
source = data.source("all")
"""
THEIRS = """
from vitreous.bench.torchvision_import import declare_torchvision
declare_torchvision()
from torchvision.datasets import ImageFolder
before, start = resident(), time.perf_counter()
source = ImageFolder(sys.argv[1])
"""
END = """
elapsed, count = time.perf_counter() - start, len(source)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(f"{elapsed:.2f} s, {elapsed / count * 1e5:.2f} s per 100,000; "
      f"kept {(resident() - before) / count:.0f} and at most {(peak - before) / count:.0f} bytes per file")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--folders", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "photos"
        for folder in range(options.folders):
            own = root / f"n{folder:08d}"
            own.mkdir(parents=True)
            for number in range(options.files // options.folders):
                os.mknod(own / f"n{folder:08d}_{number}.JPEG")
            os.utime(own, (1e9, 1e9))
        os.utime(root, (1e9, 1e9))
        environment = {**os.environ, "VITREOUS_CACHE": f"{temporary}/cache"}
        for name, code in (("vitreous", OURS), ("vitreous, again", OURS), ("torchvision", THEIRS)):
            command = [sys.executable, "-c", START + code + END, str(root)]
            found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            print(f"{name:16s}", found.stdout, end="")


if __name__ == "__main__":
    main()
