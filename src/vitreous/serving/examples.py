"""Example images for the page: from the user's data, or from what comes with the software."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.open import open_data
from vitreous.data.source import Dataset, Item, Source, Stream
from vitreous.data.transforms.decode import BadImage, decode
from vitreous.inspection.file_names import number_repeated
from vitreous.reports.images import TINY
from vitreous.serving.served_model import slug

MOST = 12
SIDE = 640  # pixels; a page has no use for more, and neither has a model of the paper's sizes
_TRIED = 4  # broken images passed over for each good one

# What to show by default: from each of these so many.
_DRAWN = {
    3: (("objects?size=256", 4), ("shapes?size=256", 2), ("signs?size=256", 2)),
    1: (("letters?size=64", 8),),
}
# Photographs that come with scikit-learn, under CC BY 2.0; the names are their photographers'.
_PHOTOGRAPHS = {"flower.jpg": "flower, by vultilion", "china.jpg": "temple, by danielbuechele"}


@dataclass(frozen=True)
class Example:
    name: str  # in its address, and below its image
    media_type: str
    content: bytes


def load_examples(spec: str | None, channels: int) -> tuple[Example, ...]:
    """At most 12 images spread over DATA, made small; by default photographs where there are some, and drawn scenes."""
    if channels not in (1, 3):
        return ()  # no image file has so many
    if spec is not None:
        return _named(_read_images(open_data(spec), channels, MOST))
    found = list(_photographs() if channels == 3 else _digits())
    for name, count in _DRAWN[channels]:
        found += itertools.islice(_read_images(open_data(f"builtin:{name}"), channels, count), count)
    return _named(iter(found))


def _named(images: Iterator[tuple[str, Image.Image]]) -> tuple[Example, ...]:
    words, shown = zip(*itertools.islice(images, MOST), strict=True)
    names = number_repeated(slug(word, otherwise="image") for word in words)
    return tuple(Example(name, *_encoded(image)) for name, image in zip(names, shown, strict=True))


def _read_images(data: Dataset, channels: int, count: int) -> Iterator[tuple[str, Image.Image]]:
    """Images and what they are called, from the held-out split where there is one."""
    split = next((name for name in ("test", "validation") if name in data.splits), next(iter(data.splits)))
    given, last = 0, None
    for item in _spread(data.splits[split], count):
        try:
            image = decode(item.content, channels, item.place)
        except BadImage as error:
            last = error
            continue
        yield " ".join(data.classes[label] for label in item.labels[:2]) or item.id, image
        given += 1
        if given == count:
            return
    if not given:
        raise VitreousError(f"{data.where}: no image to show as an example{f' ({last})' if last else ''}")


def _spread(source: Source | Stream, count: int) -> Iterator[Item]:
    """Items far apart, because neighbours are often of one class; more of them than wanted, as some may be broken."""
    if isinstance(source, Stream):
        yield from itertools.islice(source.items(), count * _TRIED)
        return
    total = min(len(source), 2**40)
    steps = min(total, count * _TRIED)
    places = np.linspace(0, total, steps, endpoint=False).astype(np.int64).tolist()
    for offset in range(min(_TRIED, steps)):  # every fourth, then those between
        for place in places[offset::_TRIED]:
            yield source[place]


def _photographs() -> Iterator[tuple[str, Image.Image]]:
    try:
        from sklearn.datasets import load_sample_image
    except ImportError:
        return
    for file, words in _PHOTOGRAPHS.items():
        yield words, Image.fromarray(np.asarray(load_sample_image(file), np.uint8))


def _digits() -> Iterator[tuple[str, Image.Image]]:
    with contextlib.suppress(VitreousError):  # they come with scikit-learn, which need not be there
        yield from _read_images(open_data("builtin:digits"), 1, 4)


def _encoded(image: Image.Image) -> tuple[str, bytes]:
    """Re-encoded, so that no location or camera in the metadata leaves the machine."""
    out = io.BytesIO()
    kind = "png" if max(image.size) <= TINY else "jpeg"
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    image.save(out, kind, quality=90)
    return f"image/{kind}", out.getvalue()
