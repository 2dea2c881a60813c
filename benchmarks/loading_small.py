"""Images per second from small pictures in memory, as CIFAR's, to float batches: ours beside torchvision's transforms.

    python benchmarks/loading_small.py              # 32 x 32, cropped after four pixels of padding, mirrored, scaled to -1..1
    python benchmarks/loading_small.py --size 64    # and enlarged

Each round runs one after another, in turn; a ratio is the median over rounds of ours to theirs in the same round.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from PIL import Image

from vitreous.bench.torchvision_import import declare_torchvision
from vitreous.data.loading.loader import Loader
from vitreous.data.sources.arrays import Arrays


def pictures(count: int) -> Arrays:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
    return Arrays("noise", "train", ("a", "b"), images, np.arange(count) % 2)


def ours(source: Arrays, size: int, batch: int, workers: int, quick: bool | None = None) -> Iterator[int]:
    enlarged = f"|resize({size})" if size != 32 else ""
    loader = Loader(source, f"pad(4)|random_crop(32){enlarged}|flip|range(-1,1)", batch, workers=workers, quick=quick)
    return (len(found.images) for found in loader.training())


class _Torchvision(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """As torchvision's CIFAR10: an array becomes a Pillow image, transforms do the rest."""

    def __init__(self, source: Arrays, size: int) -> None:
        from torchvision import transforms

        enlarged = [transforms.Resize(size)] if size != 32 else []
        self.source = source
        self.transform = transforms.Compose(
            [transforms.RandomCrop(32, padding=4), *enlarged, transforms.RandomHorizontalFlip(), transforms.ToTensor(),
             transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.source.images[index])), 0


def torchvision(source: Arrays, size: int, batch: int, workers: int) -> Iterator[int]:
    loader = torch.utils.data.DataLoader(
        _Torchvision(source, size), batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=True
    )
    return (len(images) for _ in itertools.count() for images, _ in loader)


def speed(make: Callable[[], Iterator[int]], images: int) -> float:
    """Images per second after the first tenth, which starts processes and fills queues."""
    running = make()
    done, start, begun = 0, 0.0, 0
    for count in running:
        done += count
        if not start and done >= images / 10:
            start, begun = time.perf_counter(), done
        elif start and done - begun >= images:
            break
    elapsed = time.perf_counter() - start
    del running
    return (done - begun) / elapsed


def compare(makers: Mapping[str, Callable[[], Iterator[int]]], images: int, rounds: int) -> None:
    """In turns, round after round; then medians, and ours ("vitreous") to each in the same round."""
    speeds: dict[str, list[float]] = {name: [] for name in makers}
    for number in range(rounds):
        for name, make in makers.items():
            speeds[name].append(speed(make, images))
        print(f"round {number + 1}: " + ", ".join(f"{name} {found[-1]:.0f}" for name, found in speeds.items()), flush=True)
    print(f"\n{'images/s, median':24s}{'':10s}vitreous is")
    for name, found in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(speeds["vitreous"], found, strict=True))
        print(f"{name:24s}{statistics.median(found):8.0f}  {ratio:.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--images", type=int, default=10_000, help="per round and loader")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    declare_torchvision()
    common = (pictures(10_000), options.size, options.batch_size, options.workers)
    makers: dict[str, Callable[[], Iterator[int]]] = {
        "vitreous": partial(ours, *common),
        "vitreous, exact": partial(ours, *common, quick=False),
        "torch + torchvision": partial(torchvision, *common),
    }
    compare(makers, options.images, options.rounds)


if __name__ == "__main__":
    main()
