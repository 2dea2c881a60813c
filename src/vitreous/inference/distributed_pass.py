"""One pass over a data set, sharded over all ranks, with the rows put back into the order of the data.

A loader leaves bad images out, and ranks and virtual streams take turns. So the ids that it is given are positions in the
data, by which the rows of all ranks are sorted once they are gathered.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitreous.core.distributed import World, all_gather
from vitreous.core.errors import VitreousError
from vitreous.core.progress import progress_bar
from vitreous.data.loading.loader import Batch, Loader
from vitreous.data.source import Content, Item, Policy, Source, Stream, StreamView, View
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.parse import Preprocess


@dataclass(frozen=True, eq=False)
class PassResult:
    """What there was, in the order of the data, without what could not be read."""

    ids: tuple[str, ...]
    numbers: NDArray[np.int64]  # (n,) position of each in its source; of a stream, how many items came before it
    order: NDArray[np.int64]  # (n,) where each is found among all processes' rows, one process's after another's
    bad: tuple[tuple[str, str], ...]  # place and reason of what could not be read
    notes: tuple[str, ...]  # shards that were left out
    seconds: float  # of the process that took longest


def distributed_pass(
    data: Source | Stream,
    preprocess: Preprocess,
    look: Callable[[Batch], None],
    *,
    batch_size: int,
    workers: int | None,
    world: World,
    bad_images: Policy,
    title: str,
) -> PassResult:
    """Every image once: this process `look`s at its share, `batch_size` at a time.

    A batch's ids are places in the data; `named` tells what they stand for. A fault of one process ends the pass for all,
    which would otherwise wait for its share.
    """
    numbered: Source | Stream = _Numbered(data) if isinstance(data, Source) else _NumberedStream(data)
    loader = Loader(
        numbered,
        preprocess,
        batch_size * world.world_size,
        workers=workers,
        rank=world.rank,
        world_size=world.world_size,
        bad_images=bad_images,
    )
    count = len(data) if isinstance(data, Source) else data.count()
    places: list[str] = []
    fault: VitreousError | None = None
    began = time.monotonic()
    try:
        with (
            progress_bar(title, None if count is None else -(-count // world.world_size)) as advance,
            contextlib.closing(loader.once()) as batches,  # type: ignore[type-var]  # an iterator that is a generator
        ):
            for batch in batches:
                look(batch)
                places += batch.ids
                advance(len(batch))
    except BadImage as error:
        fault = VitreousError(f"{error}; replace or remove it; `vitreous doctor` lists all such")
    except VitreousError as error:
        fault = error
    faults = [message for message in all_gather(world, fault and str(fault)) if message is not None]
    if faults:
        raise fault or VitreousError(faults[0])
    bad = [(error.place, error.why) for error in loader.bad.values()]
    skipped = [f"{entry.shard}: {entry.reason}; {entry.delivered:,} images of it are there" for entry in loader.skipped]
    everyone = all_gather(world, (places, bad, skipped, time.monotonic() - began))
    numbers, ids = _numbers(data, [place for found in everyone for place in found[0]])
    order = np.argsort(numbers, kind="stable")
    return PassResult(
        ids=tuple(ids[row] for row in order),
        numbers=numbers[order],
        order=order,
        bad=tuple(sorted({entry for found in everyone for entry in found[1]})),
        notes=tuple(dict.fromkeys(note for found in everyone for note in found[2])),
        seconds=max(found[3] for found in everyone),
    )


def image_name(data: Source | Stream, place: str) -> str:
    """For people: the image that a batch's id stands for."""
    return data.place(int(place)) if isinstance(data, Source) else place.split(" ", 2)[2]


def read_contents(
    data: Source | Stream, numbers: NDArray[np.int64], ids: Sequence[str], rows: Sequence[int]
) -> Iterator[tuple[int, Content]]:
    """These rows' images again, without what can no longer be read: of a source in the order asked; of a stream, whose
    items have names of their own, in the order they come."""
    if isinstance(data, Source):
        for row in rows:
            with contextlib.suppress(VitreousError):
                yield row, data.read(int(numbers[row]))
        return
    missing = {ids[row]: row for row in rows}
    with contextlib.suppress(VitreousError):
        for item in data.items():
            if item.id in missing:
                yield missing.pop(item.id), item.content
            if not missing:
                return


class _Numbered(View):
    def id(self, index: int) -> str:
        return str(index)


class _NumberedStream(StreamView):
    def read(self, shard: int) -> Iterator[Item]:
        for position, item in enumerate(self.parent.read(shard)):
            yield replace(item, id=f"{shard} {position} {item.id}")


def _numbers(data: Source | Stream, places: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Position and id of each place. In a stream, shard and position make one number: where the length of a shard is
    unknown, its last readable image ends it."""
    if isinstance(data, Source):
        numbers = np.array(places, np.int64)
        return numbers, [data.id(number) for number in numbers.tolist()]
    words = [place.split(" ", 2) for place in places]
    shard, position = (np.array([int(word[part]) for word in words], np.int64) for part in (0, 1))
    lengths = np.zeros(len(data.shards), np.int64)
    np.maximum.at(lengths, shard, position + 1)
    known = data.shard_lengths()
    lengths = lengths if known is None else np.maximum(lengths, np.array(known, np.int64))
    return (np.cumsum(lengths) - lengths)[shard] + position, [word[2] for word in words]
