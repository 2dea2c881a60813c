"""From a folder of photographs to a saved classifier: `vitreous fewshot --save`, cold and cached, against bare forward passes.

    python benchmarks/fewshot_save.py CHECKPOINT DATA [--image-size 112] [--threads 1] [--runs 1]

Bare is the model alone over the same images, decoded and preprocessed beforehand, in the same batches. Cold is the whole
command in an empty cache: reading, preprocessing, features, the learning curve, the head, the checkpoint with its hashes.
Cached is the same command again. All run in one process in turn; imports and the first pass of the model are not counted.
Processor seconds, of workers too, are what remains comparable on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import torch

import vitreous
from vitreous.core.progress import silence
from vitreous.data.loading.loader import Loader
from vitreous.data.source import Source
from vitreous.inference.runner import Runner, default_batch_size


def clocks() -> tuple[float, float]:
    """Seconds by the clock, and of the processor, those of processes that have ended included."""
    own, children = os.times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), own.user + own.system + children.ru_utime + children.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("data")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clf = vitreous.load(options.checkpoint, image_size=options.image_size)
    size = default_batch_size(clf.preprocess, torch.device("cpu"))
    sources = [source for source in vitreous.open_data(options.data).splits.values() if isinstance(source, Source)]
    batches = [batch.images for source in sources for batch in Loader(source, clf.preprocess, size, workers=0).once()]
    images = sum(map(len, batches))
    print(f"{images:,} images, batches of {size}, {options.threads} threads")
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["VITREOUS_CACHE"] = folder
            took = {}
            with Runner(clf.model, lean=True) as runner:
                runner.run(batches[0])
                began = clocks()
                for batch in batches:
                    runner.run(batch)
                took["bare"] = [end - start for start, end in zip(began, clocks(), strict=True)]
            for name in ("cold", "cached"):
                began = clocks()
                with silence():
                    found = vitreous.fewshot(
                        options.checkpoint,
                        options.data,
                        image_size=clf.evaluation_size,
                        save=str(Path(folder, name)),
                        device="cpu",
                    )
                took[name] = [end - start for start, end in zip(began, clocks(), strict=True)]
            accuracy = found.rounds[-1].accuracy
        times = ", ".join(f"{name} {wall:.1f} s ({work:.1f} s of processor)" for name, (wall, work) in took.items())
        ratios = [took["cold"][clock] / took["bare"][clock] for clock in (0, 1)]
        print(f"{times}; cold / bare {ratios[0]:.2f} ({ratios[1]:.2f}); accuracy {accuracy:.1%}", flush=True)


if __name__ == "__main__":
    main()
