"""Features of every image of a data set, from a frozen model: the input of few-shot classifiers and nearest neighbours.

    found = features_of(clf, dataset.source("train"))
    found.values, found.labels, found.ids

Running the model is nearly all the work of measuring it in closed form. So what came out is kept on disk (see
`feature_cache`), and asking again, with other shots or another l2, takes a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.core.device import PrecisionName as Precision
from vitreous.core.distributed import World, all_gather, broadcast
from vitreous.core.errors import VitreousError
from vitreous.data.loading.loader import Batch
from vitreous.data.source import Policy, Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference import feature_cache
from vitreous.inference.distributed_pass import distributed_pass
from vitreous.inference.runner import LoadedModel, Runner, default_batch_size


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
    clf: LoadedModel,
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
        raise VitreousError(f"preprocessing {str(preprocess)!r} is random; frozen features need a fixed string")
    if batch_size is not None and batch_size < 1:
        raise VitreousError(f"--batch-size {batch_size}: must be at least 1")
    title = f"features of {data.where} {data.split}"
    key = feature_cache.key(clf.model, data, preprocess, precision, title) if cache and world.is_main else None
    kept, notes = feature_cache.read(key, data, bad_images) if key is not None else (None, ())
    kept = broadcast(world, kept)
    if kept is not None:
        return _from(kept, data.classes, notes, cached=True)

    rows: list[NDArray[np.float32]] = []
    labels: list[tuple[int, ...]] = []

    with Runner(clf.model, device, precision, lean=True) as runner:

        def look(batch: Batch) -> None:
            rows.append(runner.run(batch.images).features.numpy())
            labels.extend(batch.labels)

        passed = distributed_pass(
            data,
            preprocess,
            look,
            batch_size=batch_size or default_batch_size(preprocess, device),
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


def _from(kept: feature_cache.CacheEntry, classes: tuple[str, ...], notes: tuple[str, ...], cached: bool) -> Features:
    return Features(kept.values, kept.labels, kept.ids, kept.numbers, classes, kept.bad, notes, cached)
