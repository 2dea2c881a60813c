"""Which images `vitreous inspect` looks at: those that are named, some of a data set, or drawn scenes.

All of them come prepared, one after another, in an order drawn by the seed: whoever takes the first few has a fair sample.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError, first_few
from vitreous.core.files import user_path
from vitreous.core.output_dir import find_data_folder
from vitreous.data.loading.loader import Loader
from vitreous.data.loading.workers import default_workers
from vitreous.data.open import open_data
from vitreous.data.sampling import permute
from vitreous.data.source import Item, Source, Stream
from vitreous.data.splits import random_subset
from vitreous.data.transforms.decode import decode
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference.batches import check_fixed_size, decode_images
from vitreous.inference.distributed_pass import read_contents
from vitreous.inference.features import compute_features
from vitreous.inference.image_list import NamedImage, image_list
from vitreous.inspection.data_map import DataMap, Projection, project_features
from vitreous.inspection.inspect_model import InputImage

SCENES = "builtin:objects"
_POINTS = 2000  # images on the map of the data: more would hide each other
_THUMBNAIL = 40  # pixels
_LISTED = 1_000_000  # names that are gone through before some are drawn
_TOLD = 5  # bad images by name
_FEW = 64  # images that are read by this process itself


@dataclass(frozen=True, eq=False)
class Reading:
    """Images as they are read, once, and what is to be said of those that could not be."""

    where: str
    count: int  # at most so many come
    images: Generator[InputImage]
    bad: list[str] = field(default_factory=list)  # which and why, filled while images are read
    notes: tuple[str, ...] = ()

    def said(self) -> tuple[str, ...]:
        return (*self.notes, f"left out what cannot be read: {first_few(self.bad, _TOLD)}") if self.bad else self.notes


# How they are prepared --------------------------------------------------------------------------------------------------------


def fixed_size(clf: Classifier) -> tuple[Preprocess, list[str]]:
    """The checkpoint's own preprocessing. One that keeps each image's size ends at the model's, or none could be compared."""
    own = clf.preprocess
    if own.size is None and not own.random:
        height, width = clf.config.image_size
        how = "bilinear" if own.eight_bit else "bilinear-plain"
        before, after = own.pixel_ops, own.scales
        text = "|".join([*map(str, before), f"resize({height},{width},{how})", *map(str, after)])
        note = f"preprocessing {str(own)!r} leaves images of different sizes; here they are resized to {height} x {width}"
        return Preprocess(text, own.channels), [note]
    check_fixed_size(own)
    return own, []


# Those that are named ---------------------------------------------------------------------------------------------------------


def named_images(words: Sequence[str], preprocess: Preprocess, count: int, first: int, seed: int) -> Reading:
    """At most `count` of the images that these words name, without those that cannot be read.

    Of more than `first`, in a drawn order: folders are sorted, and the first few are often all of one kind.
    """
    listed = list(itertools.islice(image_list(words), _LISTED))
    if len(listed) > first:
        listed = [listed[at] for at in permute(np.arange(len(listed)), len(listed), seed, 0).tolist()]
    notes: tuple[str, ...] = ()
    if len(listed) > count:
        notes = (f"{len(listed):,} images are named; {count:,} of them, drawn by --seed {seed}, are looked at",)
    bad: list[str] = []
    images = _first(_read(listed, preprocess, bad), count, bad, f"none of the {len(listed):,} images can be read")
    return Reading(first_few(words, 3), min(count, len(listed)), images, bad, notes)


def _read(listed: Sequence[NamedImage], preprocess: Preprocess, bad: list[str]) -> Generator[InputImage]:
    for path, error, pixels in decode_images(iter(listed), preprocess, workers=default_workers()):
        if pixels is not None:
            yield InputImage(path, pixels)
        else:
            bad.append(f"{path} ({error})")


def _first(images: Generator[InputImage], count: int, bad: list[str], nothing: str) -> Generator[InputImage]:
    """At most so many; `nothing` is said where there are none."""
    found = 0
    with contextlib.closing(images):
        for found, image in enumerate(itertools.islice(images, count), 1):  # noqa: B007
            yield image
    if not found:
        raise VitreousError(f"{nothing}: {first_few(bad, 1)}" if bad else nothing)


# Those of a data set ----------------------------------------------------------------------------------------------------------


def data_split(data: str) -> tuple[Source | Stream, list[str]]:
    """What was not trained on, if there is such: test, else validation, else the first split."""
    dataset = open_data(data, bad_shards="skip")
    names = [name for name in ("test", "validation") if name in dataset.splits] or list(dataset.splits)
    if not names:
        raise VitreousError(f"--data {data}: there are no images")
    return dataset.splits[names[0]], list(dataset.summary())


def data_images(source: Source | Stream, preprocess: Preprocess, count: int, batch_size: int, seed: int) -> Reading:
    """At most `count` images of the source, in a drawn order."""
    sample = sampled(source, count, seed)
    if isinstance(sample, Source):
        count = min(count, len(sample))
        sample = sample.subset(permute(np.arange(len(sample)), len(sample), seed, 0))
    workers = 0 if count <= _FEW else None  # starting processes would take longer than the work
    loader = Loader(sample, preprocess, batch_size, bad_images="skip", workers=workers)
    bad: list[str] = []
    images = _first(_load(loader, bad), count, bad, f"--data {source.where}: none of its images can be read")
    return Reading(f"{source.where} ({source.split})", count, images, bad)


def _load(loader: Loader, bad: list[str]) -> Generator[InputImage]:
    try:
        with contextlib.closing(loader.once()) as batches:  # type: ignore[type-var]  # an iterator that is a generator
            for batch in batches:
                yield from map(InputImage, batch.ids, batch.images)
    finally:
        bad += [f"{error.place} ({error.why})" for error in loader.bad.values()]
        bad += [f"{entry.shard} ({entry.reason})" for entry in loader.skipped]


def sampled(source: Source | Stream, count: int, seed: int) -> Source | Stream:
    """`count` items by the seed, the same ones wherever the files lie; of shards the beginnings, which come first."""
    if isinstance(source, Source):
        return random_subset(source, count, seed) if len(source) > count else source
    return _Beginnings(source, count, seed)


class _Beginnings(Stream):
    """As many items of each shard's beginning as make up the wanted number; of a great many shards, some."""

    def __init__(self, parent: Stream, count: int, seed: int) -> None:
        shards = len(parent.shards)
        kept = np.sort(permute(np.arange(shards), shards, seed, 0)[:count]) if shards > count else np.arange(shards)
        self.parent, self.numbers, self.each = parent, kept.tolist(), -(-count // max(1, len(kept)))
        self.where, self.split, self.classes = parent.where, parent.split, parent.classes
        self.shards, self.skipped = tuple(parent.shards[number] for number in self.numbers), parent.skipped

    def read(self, shard: int) -> Iterator[Item]:
        return itertools.islice(self.parent.read(self.numbers[shard]), self.each)


# Drawn scenes -----------------------------------------------------------------------------------------------------------------


def drawn_scenes(clf: Classifier, preprocess: Preprocess, count: int, batch_size: int, seed: int) -> Reading:
    size = min(2048, max(16, *clf.config.image_size))
    source = open_data(f"{SCENES}?size={size}").source("test")
    note = "no images given, so it looks at drawn scenes; photographs (IMAGE...) or --data DATA tell more"
    return replace(data_images(source, preprocess, count, batch_size, seed), notes=(note,))


# The map of the data ----------------------------------------------------------------------------------------------------------


def map_data(
    clf: Classifier,
    source: Source | Stream,
    preprocess: Preprocess,
    projection: Projection,
    batch_size: int | None,
    device: str,
    seed: int,
) -> tuple[DataMap, list[str]]:
    """Features of some of the data, projected, with thumbnails."""
    sample = sampled(source, _POINTS, seed)
    found = compute_features(
        clf,
        sample,
        preprocess=preprocess,
        batch_size=batch_size,
        device=device,
        bad_images="skip",
        cache=isinstance(sample, Source),  # a stream's key would be that of the whole stream
    )
    if not len(found):
        raise VitreousError(f"--data {source.where}: none of its images can be read, so there is no map; --projection none")
    notes = list(found.notes)
    if found.bad:
        notes.append(f"the map leaves out {len(found.bad):,} images that cannot be read")
    if isinstance(source, Source) and len(source) > _POINTS:
        notes.append(f"the map shows {len(found):,} of {len(source):,} images, drawn by --seed {seed}")
    thumbnails = np.zeros((len(found), _THUMBNAIL, _THUMBNAIL, 3), np.uint8)
    for row, content in read_contents(sample, found.numbers, found.ids, range(len(found))):
        # What can no longer be read stays black.
        with contextlib.suppress(VitreousError):
            image = decode(content)
            how = Image.Resampling.BICUBIC if min(image.size) > _THUMBNAIL else Image.Resampling.NEAREST
            thumbnails[row] = np.asarray(ImageOps.fit(image, (_THUMBNAIL, _THUMBNAIL), how))
    where = f"{source.where} ({source.split})"
    return DataMap(where, found, thumbnails, *project_features(found.values, projection)), notes


def folders_of(words: Sequence[str], data: str | None) -> Iterator[Path]:
    """Folders that images are read from: results must not lie among them."""
    for word in words:
        if (path := user_path(word)).is_dir():
            yield path
    if data is not None and (folder := find_data_folder(data)) is not None:
        yield folder
