"""Images per second from a folder of JPEG files to float batches of 224 x 224, beside the peers, two workers each.

    python benchmarks/loading.py photos/                  # a folder of class folders
    python benchmarks/loading.py photos/ --megapixels 12  # the same pictures, enlarged, with grain, quality 85

All do the same work: decode, a random part of 5 to 100 % of the area, bilinear to 224, mirrored or not, scaled to -1..1.
Each round runs one after another, in turn, on the same files, which are in the page cache; a ratio is the median over
rounds of ours to theirs in the same round. "decode" only decodes, in two processes, with the fastest decoder installed.
"""

from __future__ import annotations

import argparse
import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision_schemas import declare_torchvision

from vitreous.data.loading.loader import Loader
from vitreous.data.loading.workers import run_in_order
from vitreous.data.open import open_data
from vitreous.data.source import ALL, Source

SIZE, WORKERS = 224, 2


def jpegs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.suffix.lower() in (".jpg", ".jpeg"))


def ours(folder: Path, batch: int, quick: bool | None = None) -> Iterator[int]:
    source = open_data(folder).source(ALL)
    assert isinstance(source, Source)
    loader = Loader(source, f"inception_crop({SIZE})|flip|range(-1,1)", batch, workers=WORKERS, quick=quick)
    return (len(found.images) for found in loader.training())


def timm_loader(folder: Path, batch: int) -> Iterator[int]:
    from timm.data import ImageDataset, create_loader

    loader = create_loader(
        ImageDataset(str(folder)), input_size=(3, SIZE, SIZE), batch_size=batch, is_training=True, scale=(0.05, 1.0),
        ratio=(0.75, 1.33), hflip=0.5, color_jitter=None, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3,
        num_workers=WORKERS, device=torch.device("cpu"), persistent_workers=True,
    )  # fmt: skip
    return (len(images) for _ in itertools.count() for images, _ in loader)


class _Pillow(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """What a careful person writes by hand: torchvision's transforms on Pillow images."""

    def __init__(self, folder: Path) -> None:
        from torchvision import transforms

        self.paths = jpegs(folder)
        self.transform = transforms.Compose(
            [transforms.RandomResizedCrop(SIZE, scale=(0.05, 1.0), ratio=(0.75, 1.33)), transforms.RandomHorizontalFlip(),
             transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), 0


def torch_loader(folder: Path, batch: int) -> Iterator[int]:
    loader = torch.utils.data.DataLoader(
        _Pillow(folder), batch, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=True
    )
    return (len(images) for _ in itertools.count() for images, _ in loader)


def _decode(paths: list[Path]) -> int:
    for path in paths:
        content = path.read_bytes()
        try:
            import simplejpeg

            simplejpeg.decode_jpeg(content)
        except ImportError:
            Image.open(io.BytesIO(content)).convert("RGB")
    return len(paths)


def decode_only(folder: Path, batch: int) -> Iterator[int]:
    paths = itertools.cycle(jpegs(folder))
    return run_in_order(_decode, (list(itertools.islice(paths, 16)) for _ in itertools.count()), WORKERS)


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


def enlarge(folder: Path, out: Path, megapixels: float, count: int) -> None:
    rng = np.random.default_rng(0)
    paths = jpegs(folder)
    for number, path in enumerate(paths[:: max(1, len(paths) // count)][:count]):
        image = Image.open(path).convert("RGB")
        scale = (megapixels * 1e6 / (image.width * image.height)) ** 0.5
        pixels = np.asarray(image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC))
        grain = rng.normal(0, 4, pixels.shape[:2])[:, :, None]
        target = out / f"class{number % 2}" / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8)).save(target, quality=85)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=2000, help="per round and loader")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--megapixels", type=float, help="enlarge the pictures first")
    options = parser.parse_args()
    declare_torchvision()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder
        if options.megapixels:
            folder = Path(temporary)
            enlarge(options.folder, folder, options.megapixels, 64)
        makers: dict[str, Callable[[Path, int], Iterator[int]]] = {
            "vitreous": ours,
            "vitreous, exact": partial(ours, quick=False),
            "timm": timm_loader,
            "torch + Pillow": torch_loader,
            "decode": decode_only,
        }
        compare(
            {name: partial(make, folder, options.batch_size) for name, make in makers.items()}, options.images, options.rounds
        )


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


if __name__ == "__main__":
    main()
