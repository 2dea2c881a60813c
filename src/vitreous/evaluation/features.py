"""Frozen features of labelled images: what the few-shot classifier, nearest neighbours and linear probes are made from.

    found = features_of(clf, dataset.source("train"))
    found.values, found.labels, found.ids

Running the model is nearly all the work of measuring it in closed form. So what came out is kept on disk (see
`feature_cache`), and asking again, with other shots or another l2, takes a moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.data.loader import Batch, Loader
from vitreous.data.preprocess import Preprocess
from vitreous.data.source import Item, Policy, Source, Stream, View
from vitreous.errors import VitreousError
from vitreous.evaluation import feature_cache
from vitreous.machine import Name as Precision
from vitreous.models.build import Model
from vitreous.models.vit import ViT
from vitreous.progress import shown
from vitreous.world import World, gathered, told

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


def features_of(
    clf: Classifier,
    data: Source | Stream,
    *,
    preprocess: Preprocess | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    world: World | None = None,
    bad_images: Policy = "skip",
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
    key = feature_cache.key(clf, data, preprocess, precision, title) if cache and world.first else None
    kept, notes = feature_cache.read(key, data, bad_images) if key is not None else (None, ())
    kept = told(world, kept)
    if kept is not None:
        return _from(kept, data.classes, notes, cached=True)

    part = batch_size or default_batch(preprocess, device)
    numbered: Source | Stream = _Numbered(data) if isinstance(data, Source) else _NumberedStream(data)
    loader = Loader(
        numbered,
        preprocess,
        part * world.processes,
        workers=workers,
        process=world.process,
        processes=world.processes,
        bad_images=bad_images,
    )
    rows: list[NDArray[np.float32]] = []
    places: list[str] = []
    labels: list[tuple[int, ...]] = []
    count = len(data) if isinstance(data, Source) else data.count()
    with (
        frozen(clf.model, device),
        shown(title, None if count is None else -(-count // world.processes)) as advance,
    ):
        for values, batch in feature_batches(clf.model, loader, device, precision):
            rows.append(values.numpy())
            places += batch.ids
            labels += batch.labels
            advance(len(batch))
    bad = tuple((error.place, error.why) for error in loader.bad.values())
    left_out = [f"{entry.shard}: {entry.reason}; {entry.delivered:,} images of it are there" for entry in loader.skipped]
    everyone = gathered(world, (rows, places, labels, bad, left_out))
    found = _in_order(data, everyone)
    notes = (*notes, *(note for part in everyone for note in part[4]))
    if key is not None and not any(part[4] for part in everyone):  # a shard that is broken today may be mended tomorrow
        notes = (*notes, *feature_cache.write(key, found))
    return _from(found, data.classes, notes, cached=False)


def default_batch(preprocess: Preprocess, device: torch.device | str) -> int:
    """Images at once: more of small ones, and more for an accelerator, which has to be filled."""
    height, width = preprocess.size or (224, 224)
    pixels = _PIXELS * (1 if torch.device(device).type == "cpu" else 4)
    return max(1, min(_MOST, pixels // (height * width)))


def feature_batches(
    model: Model, loader: Loader, device: torch.device | str, precision: Precision = "float32"
) -> Generator[tuple[Tensor, Batch], None, None]:
    """Features (B, D), float32 and in ordinary memory, of batch after batch. The model has been `frozen`."""
    kind = torch.device(device).type
    with contextlib.closing(loader.once()) as batches:  # type: ignore[type-var]  # an iterator that is a generator
        for batch in batches:
            with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16"):
                values: Tensor = model.features(batch.images.to(device))
            yield values.float().cpu(), batch


@contextlib.contextmanager
def frozen(model: Model, device: torch.device | str) -> Iterator[None]:
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


# The order of the data -------------------------------------------------------------------------------------------------
# A loader tells ids and leaves bad images out, and processes and virtual streams take turns. So the ids that it sees are
# places in the data, by which everything is put in order again.

_Found = tuple[list[NDArray[np.float32]], list[str], list[tuple[int, ...]], tuple[tuple[str, str], ...], list[str]]


class _Numbered(View):
    def id(self, index: int) -> str:
        return str(index)


class _NumberedStream(Stream):
    def __init__(self, parent: Stream) -> None:
        self.parent, self.where, self.split, self.classes = parent, parent.where, parent.split, parent.classes
        self.shards, self.skipped = parent.shards, parent.skipped

    def read(self, shard: int) -> Iterator[Item]:
        for position, item in enumerate(self.parent.read(shard)):
            yield replace(item, id=f"{shard} {position} {item.id}")

    def count(self) -> int | None:
        return self.parent.count()

    def shard_lengths(self) -> tuple[int, ...] | None:
        return self.parent.shard_lengths()


def _in_order(data: Source | Stream, everyone: Sequence[_Found]) -> feature_cache.Kept:
    parts = [values for found in everyone for values in found[0]]
    values = np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)
    places = [place for found in everyone for place in found[1]]
    labels = [own for found in everyone for own in found[2]]
    if isinstance(data, Source):
        numbers = np.array(places, np.int64)
        ids = [data.id(number) for number in numbers.tolist()]
    else:
        numbers, ids = _places(data, places)
    if (np.diff(numbers) < 0).any():
        order = np.argsort(numbers, kind="stable")
        values, numbers = values[order], numbers[order]
        ids, labels = [ids[row] for row in order], [labels[row] for row in order]
    bad = sorted({entry for found in everyone for entry in found[3]})
    return feature_cache.Kept(values, numbers, tuple(ids), tuple(labels), tuple(bad))


def _places(data: Stream, places: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Shard and position as one number: where nobody knows how long a shard is, its last readable image ends it."""
    words = [place.split(" ", 2) for place in places]
    shard, position = (np.array([int(word[part]) for word in words], np.int64) for part in (0, 1))
    lengths = np.zeros(len(data.shards), np.int64)
    np.maximum.at(lengths, shard, position + 1)
    known = data.shard_lengths()
    lengths = lengths if known is None else np.maximum(lengths, np.array(known, np.int64))
    return (np.cumsum(lengths) - lengths)[shard] + position, [word[2] for word in words]


def _from(kept: feature_cache.Kept, classes: tuple[str, ...], notes: tuple[str, ...], cached: bool) -> Features:
    return Features(kept.values, kept.labels, kept.ids, kept.numbers, classes, kept.bad, notes, cached)
