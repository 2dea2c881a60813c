"""Features of every image of a data set, from a frozen model: the input of few-shot classifiers and nearest neighbours.

    found = compute_features(clf, dataset.source("train"))
    found.values, found.labels, found.ids

Running the model is nearly all the work of measuring it in closed form. So what came out is kept on disk (see
`feature_cache`), and asking again, with other shots or another l2, takes a moment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from vitreous.inference.feature_file import Features as Features
from vitreous.inference.outputs import FeatureKind
from vitreous.inference.runner import LoadedModel, Runner, default_batch_size


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
    kind: FeatureKind = "head",
) -> Features:
    """What enters the head, for every image: after the representation layer where there is one (PAPER 4.4); or `kind`.

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
    about: dict[str, Any] = {}
    key: str | None = None
    kept: Features | None = None
    notes: tuple[str, ...] = ()
    if cache and world.is_main:
        about = feature_cache.describe(clf, preprocess, precision, kind)
        if (content := feature_cache.data_hash(data, title)) is not None:
            key = feature_cache.key(about, content)
            kept, notes = feature_cache.read(key, bad_images)
    kept = broadcast(world, kept)
    if kept is not None:
        return replace(kept, notes=notes)

    rows: list[NDArray[np.float32]] = []
    labels: list[tuple[int, ...]] = []

    with Runner(clf.model, device, precision, lean=True, kind=kind, engine=clf.engine) as runner:

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
    gathered = [labels for found in everyone for labels in found[1]]
    ordered = tuple(gathered[row] for row in passed.order)
    found = Features(values, ordered, passed.ids, passed.numbers, data.classes, passed.bad, (*notes, *passed.notes))
    if key is None or passed.notes:  # a shard that is broken today may be mended tomorrow
        return found
    return replace(found, notes=(*notes, *feature_cache.write(key, found, about, data)))
