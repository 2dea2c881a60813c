"""`vitreous predict` as a whole: images through a model to rows, printed while they are made or written to a file."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitreous.core.device import choose_device
from vitreous.core.distributed import World, all_gather, broadcast, init_distributed, local_world_size
from vitreous.core.errors import VitreousError, check_at_least, check_share, first_few
from vitreous.core.hashing import hash_words
from vitreous.core.printable import printable
from vitreous.core.progress import say
from vitreous.data.loading.workers import default_workers
from vitreous.data.transforms.image_formats import describe_left_out
from vitreous.inference.engines.choose import choose_engine
from vitreous.inference.engines.engine import EngineOption, check_engine
from vitreous.inference.feature_cache import weights_hash
from vitreous.inference.image_list import NamedImage, image_list
from vitreous.inference.precision import agreed_precision
from vitreous.inference.prediction_sets import build_prediction_sets
from vitreous.inference.predictor import Predictor, interleave_rows
from vitreous.inference.resumable_output import claim, forget_parts, format_of, merge
from vitreous.inference.rows import Row, Writing, read_rows, writing
from vitreous.inference.runner import LoadedModel, default_batch_size
from vitreous.inference.throughput import report_throughput
from vitreous.models.token_merging import set_token_merging


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
    engine: EngineOption = "torch"
    merge_tokens: int = 0
    coverage: float | None = None  # of prediction sets; None: none are made

    def __post_init__(self) -> None:
        check_at_least(1, top=self.top, batch_size=self.batch_size)
        check_at_least(0, workers=self.workers, merge_tokens=self.merge_tokens)
        check_share(coverage=self.coverage)
        check_engine(self.engine)
        if self.out is not None and self.csv:
            raise VitreousError(
                f"--csv says how rows are printed, and --out {self.out} writes them by its ending; leave one out"
            )


@dataclass(eq=False)
class Predictions:
    """Rows in the order of the images. Iterating makes them one after another; `.rows` makes and keeps all of them.

    With --out they have been made, and are read from that file.
    """

    preprocess: str
    left_out: list[str] = field(repr=False)  # files that are no images, by their names
    known_notes: tuple[str, ...]
    way: Writing = field(repr=False)
    batches: Iterator[Sequence[Row]] | None = field(default=None, repr=False)  # None once they are read
    csv: bool = False  # how lines are written, where they are not for people
    out: Path | None = None
    already: bool = False  # it was finished before
    count: int = 0
    errors: int = 0

    def __post_init__(self) -> None:
        self._kept: tuple[Row, ...] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Which files were left out is known when the last row is made, and then the last of the notes."""
        left_out = [describe_left_out(self.left_out, len(self.left_out))] if self.left_out else []
        return (*self.known_notes, *left_out)

    @property
    def rows(self) -> tuple[Row, ...]:
        if self._kept is None:
            self._kept = tuple(self)
        return self._kept

    def __iter__(self) -> Iterator[Row]:
        return itertools.chain.from_iterable(self._read())

    def _read(self) -> Iterator[Sequence[Row]]:
        if self.out is not None:
            yield from ((row,) for _, row in read_rows(self.out, self.way))
        elif self._kept is not None:
            yield self._kept
        elif self.batches is None:
            raise VitreousError("these predictions were read before and not kept; read .rows first, which keeps them")
        else:
            batches, self.batches = self.batches, None
            for batch in batches:
                self.count += len(batch)
                self.errors += sum(row.error is not None for row in batch)
                yield batch

    @property
    def exit_code(self) -> int:
        """2 where nothing could be read."""
        if self.batches is not None:  # not read yet
            self._kept = tuple(self)
        return 2 if self.count and self.count == self.errors else 0

    def lines(self) -> Iterator[str]:
        """What is printed, while it comes."""
        if self.out is not None:
            bad = f", of which {self.errors:,} could not be read: their rows say why" if self.errors else ""
            before = "finished before, nothing to do: " if self.already else ""
            yield printable(f"{self.out}: {before}{self.count:,} images{bad}")
        elif self.csv:
            yield self.way.head[:-1]
            yield from (self.way.line(row)[:-1] for row in self)
        else:
            yield from self._table()

    def _table(self) -> Iterator[str]:
        width = 0
        for batch in self._read():
            names = [printable(row.path) for row in batch]
            if not width:  # the first batch decides; later names may stick out
                width = max(map(len, ("image", *names)))
                yield f"{'image':<{width}}  prediction"
            for name, row in zip(names, batch, strict=True):
                yield f"{name:<{width}}  {_format_prediction(row)}"

    def text(self) -> str:
        return "\n".join(self.lines())

    def records(self) -> Iterator[dict[str, Any]]:
        if self.csv:
            raise VitreousError("--json and --csv are two ways to print the same; leave one out")
        for row in self:
            yield row.record() if row.error is not None else {**row.record(), "preprocess": self.preprocess}


def _format_prediction(row: Row) -> str:
    if row.error is not None:
        return printable(row.error)
    best = ", ".join(f"{printable(name)} {p:.1%}" for name, p in zip(row.classes, row.probabilities, strict=True))
    return f"{best}; abstain: {first_few([printable(name) for name in row.set or ()], 5)}" if row.abstain else best


def run_prediction(options: PredictOptions, load: Callable[[], LoadedModel]) -> Predictions:
    """`load` gives the model: it is called when the images are known to be there."""
    written_as = "csv" if options.out is None else format_of(options.out)
    left_out: list[str] = []
    listed = image_list(options.images, shared=int(os.environ.get("WORLD_SIZE", 1)) > 1, left_out=left_out)
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(init_distributed(choose_device(options.device)))
        predictor, notes = _build_predictor(options, load(), world)
        images = itertools.islice(listed, world.rank, None, world.world_size)  # of this process
        way = writing(written_as, predictor.top, options.coverage is not None)
        result = Predictions(str(predictor.clf.preprocess), left_out, notes, way, csv=options.csv, out=options.out)
        if options.out is not None:
            about = _describe(options, predictor)
            result.count, result.errors, result.already = _write_rows(options.out, way, about, images, predictor, world)
        else:
            result.batches = _stream_rows(stack.pop_all(), predictor, images, world)
    return result


def _build_predictor(options: PredictOptions, clf: LoadedModel, world: World) -> tuple[Predictor, tuple[str, ...]]:
    set_token_merging(clf.model, options.merge_tokens)
    precision = agreed_precision(options.precision, world)  # before the first forward pass
    workers = max(1, default_workers() // local_world_size(world)) if options.workers is None else options.workers
    batch_size = options.batch_size or default_batch_size(clf.preprocess, world.device)
    top = min(options.top, clf.model.config.classes)
    sets = None
    if options.coverage is not None:
        sets = build_prediction_sets(clf, options.checkpoint, options.coverage, precision=precision.name)
    predictor = Predictor(clf, world.device, precision.name, top, workers, batch_size, sets)
    how = choose_engine(clf, options.engine, world=world, precision=precision.name, batch_size=batch_size)
    return predictor, (*clf.notes, clf.preprocessing_note(), *([precision.note] if precision.note else []), *how)


def _stream_rows(
    stack: contextlib.ExitStack, predictor: Predictor, images: Iterator[NamedImage], world: World
) -> Iterator[Sequence[Row]]:
    """Rows as a stream. Where they appear on a terminal, they are the progress."""
    with stack:
        own = predictor.rows(images)
        everyone = own if world.world_size == 1 else interleave_rows(world, own)
        yield from everyone if sys.stdout.isatty() else report_throughput(everyone)


def _describe(options: PredictOptions, predictor: Predictor) -> dict[str, Any]:
    """What the rows depend on: a file of others is not resumed."""
    clf = predictor.clf
    absolute = all(Path(word).is_absolute() for word in options.images)
    return {
        "checkpoint": options.checkpoint,
        "weights": weights_hash(clf),
        "classes": hash_words(*clf.classes),
        "preprocess": str(clf.preprocess),
        "image_size": list(clf.model.config.image_size),
        "precision": predictor.precision,
        **({"engine": clf.engine.name} if clf.engine.name != "torch" else {}),
        **({"merge_tokens": options.merge_tokens} if options.merge_tokens else {}),
        **({"coverage": options.coverage, "threshold": predictor.sets.threshold} if predictor.sets is not None else {}),
        "top": predictor.top,
        "images": list(options.images),
        "folder": None if absolute else str(Path.cwd()),  # what relative names are relative to
    }


def _write_rows(
    out: Path, way: Writing, about: Mapping[str, Any], images: Iterator[NamedImage], predictor: Predictor, world: World
) -> tuple[int, int, bool]:
    """How many rows there are, how many of them are errors, and whether all were there before."""
    file = claim(out, way, about, world.rank, world.world_size)
    if all(all_gather(world, file.done and file.path == out)):
        if world.is_main:
            forget_parts(out, world.world_size)
        return file.rows, file.errors, True
    if not file.done:
        with file:
            file.resume(images)
            if file.rows:
                say(f"{file.path}: resuming after row {file.rows:,}")
            try:
                for rows in report_throughput(predictor.rows(images), before=file.rows):
                    file.write(rows)
            except BaseException as error:
                if not isinstance(error, Exception):
                    say(f"{file.path}: {file.rows:,} whole rows; the same command resumes after them")
                raise
            file.finish()
    if world.world_size == 1:
        return file.rows, file.errors, False
    all_gather(world, file.rows)  # until the last one has written its part
    return (*broadcast(world, merge(out, way, about, world.world_size) if world.is_main else None), False)
