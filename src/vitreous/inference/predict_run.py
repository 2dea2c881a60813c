"""`vitreous predict` as a whole: images through a model to rows, printed while they are made or written to a file."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vitreous.core.device import choose_device
from vitreous.core.distributed import World, all_gather, broadcast, init_distributed, local_world_size
from vitreous.core.errors import VitreousError, check_at_least
from vitreous.core.hashing import hash_words
from vitreous.core.memory import free_memory
from vitreous.core.printable import printable
from vitreous.core.progress import say
from vitreous.data.loading.workers import default_workers
from vitreous.data.transforms.image_formats import LeftOutFiles
from vitreous.inference.batch_memory import fitting_batch, free_on
from vitreous.inference.batches import shard
from vitreous.inference.feature_cache import weights_hash
from vitreous.inference.image_list import NamedImage, image_list
from vitreous.inference.precision import agreed_precision
from vitreous.inference.predictor import Predictor, interleave_rows
from vitreous.inference.resumable_output import claim, forget_parts, format_of, merge
from vitreous.inference.rows import Row, Writing, read_rows, writing
from vitreous.inference.runner import LoadedModel
from vitreous.inference.throughput import report_throughput


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What is predicted and where the rows go; checked when it is made, before anything is loaded."""

    checkpoint: str
    images: Sequence[str]
    top: int
    out: Path | None
    csv: bool
    batch_size: int | None
    workers: int | None
    device: str
    precision: Literal["auto", "float32", "bfloat16"]

    def __post_init__(self) -> None:
        check_at_least(1, top=self.top, batch_size=self.batch_size)
        check_at_least(0, workers=self.workers)
        if self.out is not None and self.csv:
            raise VitreousError(
                f"--csv says how rows are printed, and --out {self.out} writes them by its ending; leave one out"
            )


class _Flow:
    """Batches of rows that are made while they are read. They can be read once, unless all were kept."""

    def __init__(self, batches: Iterator[Sequence[Row]]) -> None:
        self._batches, self._begun, self.done = batches, False, False
        self._kept: tuple[Row, ...] | None = None
        self.rows = self.errors = 0

    def __iter__(self) -> Iterator[Sequence[Row]]:
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
            names = [printable(row.path) for row in batch]
            if not width:  # the first batch decides; later names may stick out
                width = max(map(len, ("image", *names)))
                yield f"{'image':<{width}}  prediction"
            for name, row in zip(names, batch, strict=True):
                yield f"{name:<{width}}  {_format_prediction(row)}"

    def text(self) -> str:
        return "\n".join(self.lines())

    def records(self) -> Iterator[dict[str, Any]]:
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


def _format_prediction(row: Row) -> str:
    if row.error is not None:
        return printable(row.error)
    return ", ".join(f"{printable(name)} {p:.1%}" for name, p in zip(row.classes, row.probabilities, strict=True))


def run_prediction(options: PredictOptions, load: Callable[[], LoadedModel]) -> Predictions | WrittenPredictions:
    """`load` gives the model: it is called when the images are known to be there."""
    written_as = "csv" if options.out is None else format_of(options.out)
    left_out = LeftOutFiles()
    listed = image_list(options.images, shared=int(os.environ.get("WORLD_SIZE", 1)) > 1, left_out=left_out)
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(init_distributed(choose_device(options.device)))
        predictor, notes = _build_predictor(options, load(), world)
        way = writing(written_as, predictor.top)
        if options.out is not None:
            written = _write_rows(options.out, way, _describe(options, predictor), listed, predictor, world, notes)
            return replace(written, notes=(*written.notes, *left_out.notes()))
        batches = _stream_rows(stack.pop_all(), predictor, listed, world)
    return Predictions(_Flow(batches), way if options.csv else None, notes, left_out, str(predictor.clf.preprocess))


def _build_predictor(options: PredictOptions, clf: LoadedModel, world: World) -> tuple[Predictor, tuple[str, ...]]:
    precision = agreed_precision(options.precision, world)  # before the first forward pass
    here = local_world_size(world)
    workers = max(1, default_workers() // here) if options.workers is None else options.workers
    config = clf.model.config

    def fit_batch() -> int:
        on_cpu = world.device.type == "cpu"
        free = free_memory() if on_cpu else free_on(world.device)
        return fitting_batch(config, precision.name, world.device, free, here if on_cpu else 1)

    batch_size = fit_batch if options.batch_size is None else options.batch_size
    predictor = Predictor(clf, world.device, precision.name, min(options.top, config.classes), workers, batch_size)
    return predictor, (*clf.notes, clf.preprocessing_note(), *([precision.note] if precision.note else []))


def _stream_rows(
    stack: contextlib.ExitStack, predictor: Predictor, images: Iterator[NamedImage], world: World
) -> Iterator[Sequence[Row]]:
    """Rows for whoever reads them. Where they appear on a terminal, they are the progress."""
    with stack:
        own = predictor.rows(shard(images, world.rank, world.world_size))
        everyone = own if world.world_size == 1 else interleave_rows(world, own)
        yield from everyone if sys.stdout.isatty() else report_throughput(everyone)


def _describe(options: PredictOptions, predictor: Predictor) -> dict[str, Any]:
    """What the rows depend on: a file of others is not resumed."""
    clf = predictor.clf
    absolute = all(Path(word).is_absolute() for word in options.images)
    return {
        "checkpoint": options.checkpoint,
        "weights": weights_hash(clf.model),
        "classes": hash_words(*clf.classes),
        "preprocess": str(clf.preprocess),
        "image_size": list(clf.model.config.image_size),
        "precision": predictor.precision,
        "top": predictor.top,
        "images": list(options.images),
        "folder": None if absolute else str(Path.cwd()),  # what relative names are relative to
    }


def _write_rows(
    out: Path,
    way: Writing,
    about: Mapping[str, Any],
    images: Iterator[NamedImage],
    predictor: Predictor,
    world: World,
    notes: tuple[str, ...],
) -> WrittenPredictions:
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
                    say(f"{file.path}: {file.rows:,} whole rows; the same command resumes after them")
                raise
            file.finish()
    count, errors = file.rows, file.errors
    if world.world_size > 1:
        all_gather(world, file.rows)  # until the last one has written its part
        count, errors = broadcast(world, merge(out, way, about, world.world_size) if world.is_main else None)
    return WrittenPredictions(str(out), count, errors, False, way, notes, str(predictor.clf.preprocess))
