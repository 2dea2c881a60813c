from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.commands.types import Checkpoint, ImageSize
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.core.distributed import World
    from vitreous.data.transforms.image_formats import LeftOutFiles
    from vitreous.inference.image_list import NamedImage
    from vitreous.inference.predictor import Predictor
    from vitreous.inference.rows import Row, Writing


class _Flow:
    """Batches of rows that are made while they are read. They can be read once, unless all were kept."""

    def __init__(self, batches: Iterator[Sequence[Row]]) -> None:
        self._batches, self._begun, self.done = batches, False, False
        self._kept: tuple[Row, ...] | None = None
        self.rows = self.errors = 0

    def __iter__(self) -> Iterator[Sequence[Row]]:
        from vitreous.core.errors import VitreousError

        if self._kept is not None:
            yield self._kept
            return
        if self._begun:
            raise VitreousError("these predictions were read before and not kept; read .rows first, which keeps them")
        self._begun = True
        for batch in self._batches:
            self.rows += len(batch)
            self.errors += sum(row.error is not None for row in batch)
            yield batch
        self.done = True

    def kept(self) -> tuple[Row, ...]:
        if self._kept is None:
            self._kept = tuple(itertools.chain.from_iterable(self))
        return self._kept

    @property
    def begun(self) -> bool:
        return self._begun


@dataclass(frozen=True, eq=False)
class Predictions:
    """Rows in the order of the images. Iterating makes them one after another; `.rows` makes and keeps all of them."""

    flow: _Flow = field(repr=False)
    csv: Writing | None = None  # how lines are written, where they are not for people
    known_notes: tuple[str, ...] = ()
    left_out: LeftOutFiles | None = field(default=None, repr=False)
    preprocess: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Which files were left out is known when the last row is made, and then the last of the notes."""
        return (*self.known_notes, *(self.left_out.notes() if self.left_out is not None and self.flow.done else ()))

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.flow.kept()

    def __iter__(self) -> Iterator[Row]:
        return itertools.chain.from_iterable(self.flow)

    @property
    def exit_code(self) -> int:
        """2 where nothing could be read."""
        if not self.flow.begun:
            self.flow.kept()
        return _exit_code(self.flow.rows, self.flow.errors)

    def lines(self) -> Iterator[str]:
        """What is printed, while it comes."""
        if self.csv is not None:
            yield self.csv.head[:-1]
            for row in self:
                yield self.csv.line(row)[:-1]
            return
        width = 0
        for batch in self.flow:
            names = [_shown(row.path) for row in batch]
            if not width:  # the first batch decides; later names may stick out
                width = max(map(len, ("image", *names)))
                yield f"{'image':<{width}}  prediction"
            for name, row in zip(names, batch, strict=True):
                yield f"{name:<{width}}  {_told(row)}"

    def text(self) -> str:
        return "\n".join(self.lines())

    def records(self) -> Iterator[dict[str, Any]]:
        from vitreous.core.errors import VitreousError

        if self.csv is not None:
            raise VitreousError("--json and --csv are two ways to print the same; leave one out")
        return (_record(row, self.preprocess) for row in self)


@dataclass(frozen=True, eq=False)
class WrittenPredictions:
    """Rows that are in a file, in the order of the images."""

    out: str
    count: int
    errors: int
    already: bool  # it was finished before
    way: Writing = field(repr=False)
    notes: tuple[str, ...] = ()
    preprocess: str = ""

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self)

    def __iter__(self) -> Iterator[Row]:
        from vitreous.inference.rows import read_rows

        return (row for _, row in read_rows(Path(self.out), self.way))

    @property
    def exit_code(self) -> int:
        return _exit_code(self.count, self.errors)

    def text(self) -> str:
        bad = f", of which {self.errors:,} could not be read: their rows say why" if self.errors else ""
        before = "finished before, nothing to do: " if self.already else ""
        return f"{self.out}: {before}{self.count:,} images{bad}"

    def records(self) -> Iterator[dict[str, Any]]:
        return (_record(row, self.preprocess) for row in self)


def _record(row: Row, preprocess: str) -> dict[str, Any]:
    return row.record() if row.error is not None else {**row.record(), "preprocess": preprocess}


def _exit_code(rows: int, errors: int) -> int:
    return 2 if rows and rows == errors else 0


def _shown(name: str) -> str:
    from vitreous.core.printable import printable

    return printable(name)


def _told(row: Row) -> str:
    if row.error is not None:
        return _shown(row.error)
    return ", ".join(f"{_shown(name)} {p:.1%}" for name, p in zip(row.classes, row.probabilities, strict=True))


def predict(
    checkpoint: Checkpoint,
    images: Annotated[Sequence[str], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE...", help_behavior_hint="(required)")],
    top: int = 5,
    out: str | None = None,
    csv: bool = False,
    image_size: ImageSize = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "float32",
) -> Predictions | WrittenPredictions:
    """Predict the classes of images, a few or millions, with a checkpoint of any kind.

    Rows come in the order of the images, while they are made. An image that cannot be read is reported in its row and does
    not end the run. Killed, a command with --out goes on where it was when it is started again. Several processes: torchrun.

    Example: vitreous predict runs/pets/checkpoint cat.jpg photos/ --out rows.jsonl

    Args:
        checkpoint: a run, a file, a folder, or a name from `vitreous list weights`.
        images: files, folders, patterns in quotes such as 'photos/**/*.jpg', or - for names on standard input.
        top: how many classes to tell.
        out: a file for the rows instead of printing them: .jsonl or .csv.
        csv: print rows as CSV.
        image_size: run the model at another size than the checkpoint's.
        batch_size: how many images to run at once; as many as suit the memory if not given.
        workers: processes that decode; as many as there are cores if not given, 0 for none.
        device: cpu, cuda, mps; the best there is if not given.
        precision: auto takes bfloat16 where it is faster; digits are lost.
    """
    from vitreous.core.device import choose_device
    from vitreous.core.distributed import init_distributed
    from vitreous.core.errors import VitreousError
    from vitreous.data.transforms.image_formats import LeftOutFiles
    from vitreous.inference.image_list import image_list
    from vitreous.inference.resumable_output import format_of
    from vitreous.inference.rows import writing

    words = [os.fspath(image) for image in ([images] if isinstance(images, (str, os.PathLike)) else images)]
    for name, value, least in (("top", top, 1), ("batch-size", batch_size, 1), ("workers", workers, 0)):
        if value is not None and value < least:
            raise VitreousError(f"--{name} {value}: must be at least {least}")
    target = None if out is None else user_path(out)
    written_as = "csv" if target is None else format_of(target)
    if target is not None and csv:
        raise VitreousError(f"--csv says how rows are printed, and --out {out} writes them by its ending; leave one out")
    processes = int(os.environ.get("WORLD_SIZE", 1))
    left_out = LeftOutFiles()
    listed = image_list(words, shared=processes > 1, left_out=left_out)
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(init_distributed(choose_device(device)))
        predictor, notes = _predictor(checkpoint, top, image_size, batch_size, workers, precision, world)
        way = writing(written_as, predictor.top)
        if target is not None:
            about = _about(checkpoint, predictor, words)
            written = _written(target, way, about, listed, predictor, world, notes)
            return replace(written, notes=(*written.notes, *left_out.notes()))
        flow = _streamed(stack.pop_all(), predictor, listed, world)
    return Predictions(_Flow(flow), way if csv else None, notes, left_out, str(predictor.clf.preprocess))


def _predictor(
    checkpoint: str,
    top: int,
    image_size: tuple[int, int] | None,
    batch_size: int | None,
    workers: int | None,
    precision: Literal["auto", "float32", "bfloat16"],
    world: World,
) -> tuple[Predictor, tuple[str, ...]]:
    from vitreous.classifier import load
    from vitreous.core.distributed import local_world_size
    from vitreous.core.memory import free_memory
    from vitreous.data.loading.workers import default_workers
    from vitreous.inference.batch_memory import fitting_batch, free_on
    from vitreous.inference.precision import agreed_precision
    from vitreous.inference.predictor import Predictor

    clf = load(checkpoint, image_size=image_size)
    chosen = agreed_precision(precision, world)  # before the first forward pass
    here = local_world_size(world)
    decoding = max(1, default_workers() // here) if workers is None else workers

    def fitting() -> int:
        on_processor = world.device.type == "cpu"
        free = free_memory() if on_processor else free_on(world.device)
        return fitting_batch(clf.config, chosen.name, world.device, free, here if on_processor else 1)

    top = min(top, clf.config.classes)
    predictor = Predictor(clf, world.device, chosen.name, top, decoding, fitting if batch_size is None else batch_size)
    return predictor, (*clf.notes, clf.preprocessing_note(), *([chosen.note] if chosen.note else []))


def _streamed(
    stack: contextlib.ExitStack, predictor: Predictor, images: Iterator[NamedImage], world: World
) -> Iterator[Sequence[Row]]:
    """Rows for whoever reads them. Where they appear on a terminal, they are the progress."""
    from vitreous.inference.batches import shard
    from vitreous.inference.predictor import interleave_rows
    from vitreous.inference.throughput import report_throughput

    with stack:
        own = predictor.rows(shard(images, world.rank, world.world_size))
        everyone = own if world.world_size == 1 else interleave_rows(world, own)
        yield from everyone if sys.stdout.isatty() else report_throughput(everyone)


def _about(checkpoint: str, predictor: Predictor, words: Sequence[str]) -> dict[str, Any]:
    """What the rows depend on."""

    from vitreous.core.hashing import hash_words
    from vitreous.inference.feature_cache import weights_hash

    clf = predictor.clf
    names = hash_words(*clf.classes)
    absolute = all(Path(word).is_absolute() for word in words)
    return {
        "checkpoint": checkpoint,
        "weights": weights_hash(clf.model),
        "classes": names,
        "preprocess": str(clf.preprocess),
        "image_size": list(clf.model.config.image_size),
        "precision": predictor.precision,
        "top": predictor.top,
        "images": list(words),
        "folder": None if absolute else str(Path.cwd()),  # what relative names are relative to
    }


def _written(
    out: Path,
    way: Writing,
    about: Mapping[str, Any],
    images: Iterator[NamedImage],
    predictor: Predictor,
    world: World,
    notes: tuple[str, ...],
) -> WrittenPredictions:
    from vitreous.core.distributed import all_gather, broadcast
    from vitreous.core.progress import say
    from vitreous.inference.batches import shard
    from vitreous.inference.resumable_output import claim, forget_parts, merge
    from vitreous.inference.throughput import report_throughput

    file = claim(out, way, about, world.rank, world.world_size)
    finished = file.done and file.path == out
    if all(all_gather(world, finished)):
        if world.is_main:
            forget_parts(out, world.world_size)
        return WrittenPredictions(str(out), file.rows, file.errors, True, way, notes, str(predictor.clf.preprocess))
    if not file.done:
        own = shard(images, world.rank, world.world_size)
        with file:
            file.resume(own)
            if file.rows:
                say(f"{file.path}: resuming after row {file.rows:,}")
            try:
                for rows in report_throughput(predictor.rows(own), before=file.rows):
                    file.write(rows)
            except BaseException as error:
                if not isinstance(error, Exception):
                    say(f"{file.path}: {file.rows:,} whole rows; the same command goes on behind them")
                raise
            file.finish()
    count, errors = file.rows, file.errors
    if world.world_size > 1:
        all_gather(world, file.rows)  # until the last one has written its part
        count, errors = broadcast(world, merge(out, way, about, world.world_size) if world.is_main else None)
    return WrittenPredictions(str(out), count, errors, False, way, notes, str(predictor.clf.preprocess))
