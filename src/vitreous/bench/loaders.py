"""From image files to training batches, by vitreous and by each peer: decode, random crop of 5 to 100 % of the area, bilinear
to the model's size, mirrored or not, scaled to -1..1. Two workers each."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from vitreous.bench.models import IMAGES, PHOTOGRAPHS
from vitreous.bench.race import Work
from vitreous.bench.torchvision_import import declare_torchvision

WORKERS = 2
EPOCH = 22  # batches of a turn: files for more are there, so that no epoch ends within it
_FILL, _TIMED = 6, EPOCH - 6  # batches: until the queues are in their usual state, then those that are timed
Batches = Iterator[Any]


def loader_step(work: Work) -> Callable[[], float]:
    """Seconds of a batch. Each turn starts a new loader: an idle one would fill its queues during the turns of others."""

    def step() -> float:
        with contextlib.ExitStack() as leaving:
            batches = training_batches(work, leaving)
            for _ in range(_FILL):
                next(batches)
            began = time.perf_counter()
            for _ in range(_TIMED):
                next(batches)
            return (time.perf_counter() - began) / _TIMED

    return step


def training_batches(work: Work, leaving: contextlib.ExitStack) -> Batches:
    """Batches without end, by the library's own loader."""
    size = torch.load(Path(work.folder) / IMAGES, weights_only=True).shape[-1]
    folder = Path(work.folder) / PHOTOGRAPHS
    if work.library == "vitreous":
        return _vitreous_batches(folder, size, work.batch, leaving)
    declare_torchvision()
    loader = _timm_loader(folder, size, work.batch) if work.library == "timm" else _torch_loader(folder, size, work.batch)
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _vitreous_batches(folder: Path, size: int, batch: int, leaving: contextlib.ExitStack) -> Batches:
    from vitreous.data.loading.loader import Loader
    from vitreous.data.open import open_data
    from vitreous.data.source import ALL, Source

    source = open_data(folder).source(ALL)
    assert isinstance(source, Source)
    loader = Loader(source, f"inception_crop({size})|flip|range(-1,1)", batch, workers=WORKERS)
    return leaving.enter_context(contextlib.closing(loader.training()))  # type: ignore[type-var]


def _timm_loader(folder: Path, size: int, batch: int) -> Any:
    from timm import data as timm_data

    library: Any = timm_data  # partly typed, and wrongly
    return library.create_loader(
        library.ImageDataset(str(folder)), input_size=(3, size, size), batch_size=batch, is_training=True, scale=(0.05, 1.0),
        ratio=(0.75, 1.33), hflip=0.5, color_jitter=None, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3,
        num_workers=WORKERS, device=torch.device("cpu"), persistent_workers=True,
    )  # fmt: skip


def _torch_loader(folder: Path, size: int, batch: int) -> Any:
    from torchvision import datasets, transforms

    transform = transforms.Compose(
        [transforms.RandomResizedCrop(size, scale=(0.05, 1.0), ratio=(0.75, 1.33)), transforms.RandomHorizontalFlip(),
         transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
    )  # fmt: skip
    return torch.utils.data.DataLoader(
        datasets.ImageFolder(str(folder), transform), batch, shuffle=True, drop_last=True, num_workers=WORKERS,
        persistent_workers=True,
    )  # fmt: skip
