"""Frozen features of labelled images: what the few-shot classifier, nearest neighbours and linear probes are made from.

    found = features_of(clf, dataset.source("train"))
    found.values, found.labels, found.ids

Running the model is nearly all the work of measuring it in closed form. So what came out is kept on disk (see
`feature_cache`), and asking again, with other shots or another l2, takes a moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.core.device import Name as Precision
from vitreous.core.distributed import World, all_gather, broadcast
from vitreous.core.errors import VitreousError
from vitreous.data.loading.loader import Batch
from vitreous.data.source import Policy, Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation import feature_cache
from vitreous.evaluation.distributed_pass import distributed_pass
from vitreous.models.build import Model
from vitreous.models.vit import ViT

_PIXELS = 32 * 224 * 224  # of a batch on a processor: enough to keep it busy, and small beside the model
_MOST = 512


@dataclass(frozen=True, eq=False)
class Features:
    """In the order of the data, without what could not be read."""

    values: NDArray[np.float32]  # (n, D)
    labels: tuple[tuple[int, ...], ...]
    ids: tuple[str, ...]
    numbers: NDArray[np.int64]  # of each in the source; in a stream, how many items came before it
    classes: tuple[str, ...]
    bad: tuple[tuple[str, str], ...] = ()  # place and reason of what could not be read
    notes: tuple[str, ...] = ()  # what became of the cache, and shards that were left out
    cached: bool = False  # it was on disk; the model was not run

    def __len__(self) -> int:
        return len(self.ids)

    def some(self, rows: Sequence[int] | NDArray[np.int64]) -> Features:
        """These rows alone."""
        rows = np.asarray(rows, np.int64)
        labels, ids = tuple(self.labels[row] for row in rows), tuple(self.ids[row] for row in rows)
        return replace(self, values=self.values[rows], labels=labels, ids=ids, numbers=self.numbers[rows])

    def targets(self) -> NDArray[np.int64]:
        """The first label of each, -1 where there is none."""
        return np.array([own[0] if own else -1 for own in self.labels], np.int64)


def compute_features(
    clf: Classifier,
    data: Source | Stream,
    *,
    preprocess: Preprocess | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    world: World | None = None,
    bad_images: Policy = "stop",
    cache: bool = True,
) -> Features:
    """What enters the head, for every image: after the representation layer where there is one (PAPER 4.4).

    `batch_size` counts the images that one process runs at once. With several processes each runs its share, and all of them
    get everything; then the world knows the device. The classifier comes back as it was.
    """
    world = world or World(0, 1, torch.device(device))
    device = world.device
    preprocess = preprocess or clf.preprocess
    if preprocess.random:
        raise VitreousError(f"preprocessing {str(preprocess)!r} goes by chance; frozen features need a fixed string")
    if batch_size is not None and batch_size < 1:
        raise VitreousError(f"--batch-size {batch_size}: must be at least 1")
    title = f"features of {data.where} {data.split}"
    key = feature_cache.key(clf, data, preprocess, precision, title) if cache and world.is_main else None
    kept, notes = feature_cache.read(key, data, bad_images) if key is not None else (None, ())
    kept = broadcast(world, kept)
    if kept is not None:
        return _from(kept, data.classes, notes, cached=True)

    rows: list[NDArray[np.float32]] = []
    labels: list[tuple[int, ...]] = []

    def look(batch: Batch) -> None:
        rows.append(batch_features(clf.model, batch, device, precision).numpy())
        labels.extend(batch.labels)

    with frozen_model(clf.model, device):
        passed = distributed_pass(
            data,
            preprocess,
            look,
            batch_size=batch_size or default_batch(preprocess, device),
            workers=workers,
            world=world,
            bad_images=bad_images,
            title=title,
        )
    everyone = all_gather(world, (rows, labels))
    parts = [values for found in everyone for values in found[0]]
    values = np.concatenate(parts)[passed.order] if parts else np.zeros((0, 0), np.float32)
    own = [labels for found in everyone for labels in found[1]]
    found = feature_cache.CacheEntry(values, passed.numbers, passed.ids, tuple(own[row] for row in passed.order), passed.bad)
    notes = (*notes, *passed.notes)
    if key is not None and not passed.notes:  # a shard that is broken today may be mended tomorrow
        notes = (*notes, *feature_cache.write(key, found))
    return _from(found, data.classes, notes, cached=False)


def default_batch(preprocess: Preprocess, device: torch.device | str) -> int:
    """Images at once: more of small ones, and more for an accelerator, which has to be filled."""
    height, width = preprocess.size or (224, 224)
    pixels = _PIXELS * (1 if torch.device(device).type == "cpu" else 4)
    return max(1, min(_MOST, pixels // (height * width)))


def batch_features(model: Model, batch: Batch, device: torch.device | str, precision: Precision = "float32") -> Tensor:
    """Features (B, D) of a batch, float32 and in ordinary memory. The model has been `frozen`."""
    with (
        torch.no_grad(),
        torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16"),
    ):
        values: Tensor = model.features(batch.images.to(device))
    return values.float().cpu()


@contextlib.contextmanager
def frozen_model(model: Model, device: torch.device | str) -> Iterator[None]:
    """On the device, without dropout, and lean; afterwards where and as it was."""
    before, training = next(model.parameters()).device, model.training
    lean = model.lean if isinstance(model, ViT) else False
    try:
        model.to(device).eval()
        if isinstance(model, ViT):
            model.lean = True  # the last layer only for the tokens that are read: the same numbers
        yield
    finally:
        if isinstance(model, ViT):
            model.lean = lean
        model.to(before).train(training)


def _from(kept: feature_cache.CacheEntry, classes: tuple[str, ...], notes: tuple[str, ...], cached: bool) -> Features:
    return Features(kept.values, kept.labels, kept.ids, kept.numbers, classes, kept.bad, notes, cached)
