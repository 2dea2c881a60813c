"""`vitreous embed` as a whole: features of every image of a data set to one file, a segment at a time.

A segment is some images of a split, or some of its shards. When one is done, its features are appended to `FILE.part` and
what they are of, as one line, to `FILE.part.jsonl`; a command that was killed resumes after the last whole line. So memory
holds one segment, and the bytes at the end do not depend on how often it was interrupted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from vitreous.core.device import PrecisionName, choose_device
from vitreous.core.distributed import World, broadcast, init_distributed
from vitreous.core.errors import NonFiniteOutput, VitreousError, check_at_least, one_line
from vitreous.core.files import beside, flush_to_disk, locked
from vitreous.core.hashing import hash_words
from vitreous.core.output_dir import check_outside, check_writable, find_data_folder
from vitreous.core.printable import printable
from vitreous.core.progress import progress_bar, say, silence
from vitreous.core.untrusted_json import parse_json
from vitreous.data.open import open_data
from vitreous.data.source import Dataset, Item, Policy, Source, Stream, StreamView
from vitreous.inference import feature_cache
from vitreous.inference.engines.choose import choose_engine
from vitreous.inference.engines.engine import EngineOption, check_engine
from vitreous.inference.feature_export import FORMATS, FeatureFormat, check_format, export_features
from vitreous.inference.feature_file import FeatureFile, Features, Rows, finish_file, header_bytes
from vitreous.inference.features import compute_features
from vitreous.inference.outputs import FeatureKind, check_feature_kind
from vitreous.inference.precision import agreed_precision
from vitreous.inference.resumable_output import about_path, read_about, refuse_difference, write_done
from vitreous.inference.rows import whole_lines
from vitreous.inference.runner import LoadedModel, default_batch_size
from vitreous.models.token_merging import set_token_merging

BATCHES = 32  # of a segment: what a kill loses at most
_TOKEN_BATCHES = 4  # the same of patch tokens, which are hundreds of times as large
_SHARDS = 4  # of a segment at least: each is read by one worker


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """What is embedded and where features go; checked when it is made, before anything is loaded."""

    checkpoint: str
    data: str
    out: Path
    format: FeatureFormat | None  # None: by the ending of `out`
    kind: FeatureKind
    bad_images: Policy
    batch_size: int | None
    workers: int | None
    device: str
    precision: Literal["auto", "float32", "bfloat16"]
    engine: EngineOption = "torch"
    merge_tokens: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size)
        check_at_least(0, workers=self.workers)
        check_engine(self.engine)
        if self.out.is_dir():
            raise VitreousError(f"--out {self.out}: is a folder; name a file in it, as {self.out / 'features.safetensors'}")
        check_format(self.written_as, self.kind)
        check_outside(self.out, find_data_folder(self.data))
        check_writable("--out", self.out)

    @property
    def written_as(self) -> FeatureFormat:
        if self.format is not None:
            return self.format
        for name in FORMATS:
            if self.out.suffix.lower() == f".{name}":
                return name
        raise VitreousError(f"--out {self.out}: give --format, or a name that ends in .{', .'.join(FORMATS)}")


@dataclass(frozen=True)
class Embedding:
    """A finished file of features."""

    out: Path
    format: FeatureFormat
    images: int
    shape: tuple[int, ...]  # of the features of one image
    bad: int
    about: Mapping[str, Any]
    notes: tuple[str, ...]
    already: bool = False  # it was finished before
    exit_code: int = 0

    def text(self) -> str:
        before = "finished before, nothing to do: " if self.already else ""
        bad = f"; {self.bad:,} could not be read" if self.bad else ""
        shape = " x ".join(f"{side:,}" for side in self.shape)
        return printable(f"{self.out}: {before}{self.images:,} images, {shape} features each{bad}")

    def records(self) -> Iterator[dict[str, Any]]:
        names = ("checkpoint", "weights", "preprocess", "precision", "kind", "data")
        found = {name: self.about[name] for name in names}
        yield {
            "out": str(self.out),
            "format": self.format,
            "images": self.images,
            "shape": self.shape,
            "bad": self.bad,
            **found,
        }

    def open(self) -> FeatureFile:
        """The features, mapped from the file."""
        if self.format != "safetensors":
            raise VitreousError(f"{self.out}: written as {self.format}; safetensors is what can be opened again")
        return FeatureFile(self.out)


def run_embedding(options: EmbedOptions, load: Callable[[], LoadedModel]) -> Embedding:
    """`load` gives the model: it is called when the images are known to be there."""
    dataset = open_data(options.data, bad_shards=options.bad_images)
    if dataset.count() == 0:
        raise VitreousError(f"{options.data}: there are no images in it; check the path")
    with init_distributed(choose_device(options.device)) as world:
        clf = load()
        check_feature_kind(clf.model, options.kind)
        set_token_merging(clf.model, options.merge_tokens)
        precision = agreed_precision(options.precision, world)
        batch_size = options.batch_size or default_batch_size(clf.preprocess, world.device)
        how = choose_engine(
            clf, options.engine, world=world, precision=precision.name, batch_size=batch_size, kind=options.kind
        )
        notes = (*clf.notes, *how, clf.preprocessing_note(), *([precision.note] if precision.note else []), *dataset.summary())
        about: dict[str, Any] = {}
        if world.is_main:
            about = {
                "checkpoint": options.checkpoint,
                **feature_cache.describe(clf, clf.preprocess, precision.name, options.kind),
                "data": options.data,
                "folder": str(Path.cwd()),
                "content": {name: _content(source) for name, source in dataset.splits.items()},
                "classes": list(dataset.classes),
            }
        before = broadcast(world, _finished(options, about, notes) if world.is_main else None)
        if before is not None:
            if world.is_main:
                PartialFile(options.out, about).forget()  # of a command that was killed on its last step
            return before
        with contextlib.ExitStack() as stack:
            part = stack.enter_context(PartialFile(options.out, about)) if world.is_main else None
            more = _write_segments(options, dataset, clf, precision.name, part, world)
            if part is None:
                return Embedding(options.out, options.written_as, 0, (), 0, about, notes)
            shape, images, bad = part.shape, len(part.rows), len(part.rows.bad)
            if not images:
                raise VitreousError(f"{options.data}: none of its images can be read; `vitreous doctor` lists them")
            part.finish()
            if options.written_as == "safetensors":
                part.path.replace(options.out)
            else:
                export_features(FeatureFile(part.path), options.out, options.written_as)
                write_done(options.out, {**about, "format": options.written_as, "shape": shape}, images, bad)
            flush_to_disk(options.out.parent)
            part.forget()
    return Embedding(options.out, options.written_as, images, shape, bad, about, (*notes, *more))


def _content(data: Source | Stream) -> str:
    """Of shards that are far away, whose content is unknown without fetching, the names."""
    found = feature_cache.data_hash(data, f"features of {data.where} {data.split}")
    return found or hash_words(*(data.shards if isinstance(data, Stream) else ()))


def _finished(options: EmbedOptions, about: Mapping[str, Any], notes: tuple[str, ...]) -> Embedding | None:
    """What an earlier command with the same options has written; a file of anything else is refused."""
    out = options.out
    if not out.exists():
        return None
    if options.written_as == "safetensors":
        file = FeatureFile(out)
        refuse_difference(out, file.about, about)
        shape, images, bad = file.values.shape[1:], len(file), len(file.bad)
    else:
        if not about_path(out).exists():
            raise VitreousError(f"--out {out}: is there already, and is none of ours; choose another --out, or remove it")
        recorded = read_about(about_path(out))
        shape = tuple(recorded.get("shape", ()))
        refuse_difference(out, recorded, {**about, "format": options.written_as, "shape": shape})
        images, bad = recorded["rows"], recorded["errors"]
    return Embedding(out, options.written_as, images, shape, bad, about, notes, already=True)


def _write_segments(
    options: EmbedOptions, dataset: Dataset, clf: LoadedModel, precision: PrecisionName, part: PartialFile | None, world: World
) -> tuple[str, ...]:
    """Everything that is not there yet; returns what is to be said of shards that were left out."""
    done: dict[str, tuple[int, int]] = broadcast(world, part.done if part is not None else {})
    batch_size = options.batch_size or default_batch_size(clf.preprocess, world.device)
    batches = _TOKEN_BATCHES if options.kind == "patches" else BATCHES
    notes: list[str] = []
    if part is not None and len(part.rows):
        say(f"{part.path}: resuming after {len(part.rows):,} images")
    with progress_bar(f"features of {options.data}", dataset.count()) as advance:
        advance(sum(numbered for _, numbered in done.values()))
        try:
            for split, source in dataset.splits.items():
                begin, numbered = done.get(split, (0, 0))
                for segment, end in _segments(source, begin, batch_size * batches * world.world_size):
                    with silence():
                        found = compute_features(
                            clf,
                            segment,
                            batch_size=batch_size,
                            workers=options.workers,
                            precision=precision,
                            world=world,
                            bad_images=options.bad_images,
                            cache=False,
                            kind=options.kind,
                        )
                    check_finite(options.checkpoint, found)
                    count = segment.count()
                    after = numbered + (count if count is not None else int(found.numbers.max(initial=-1)) + 1)
                    if part is not None:
                        part.append(split, found, numbered, (end, after))
                    advance(after - numbered)
                    numbered = after
                    notes += found.notes
        except BaseException as error:
            if part is not None and len(part.rows) and not isinstance(error, Exception):
                say(f"{part.path}: {len(part.rows):,} images; the same command resumes after them")
            raise
    return tuple(dict.fromkeys(notes))


def check_finite(checkpoint: str, found: Features) -> None:
    finite = np.isfinite(found.values)
    if not finite.all():
        row = int(np.argwhere(~finite)[0, 0])
        raise NonFiniteOutput(
            f"{checkpoint}: the features of {found.ids[row]} are not finite (NaN or infinity); its weights or its "
            f"preprocessing are broken"
        )


# Segments --------------------------------------------------------------------------------------------------------------


def _segments(data: Source | Stream, begin: int, images: int) -> Iterator[tuple[Source | Stream, int]]:
    """The rest of a split, so many images at a time, with where each part of it ends: after so many images, or shards."""
    if isinstance(data, Source):
        for start in range(begin, len(data), images):
            end = min(start + images, len(data))
            yield data.subset(range(start, end)), end
        return
    lengths = data.shard_lengths()
    while begin < len(data.shards):
        end = min(begin + _SHARDS, len(data.shards))
        while lengths is not None and end < len(data.shards) and sum(lengths[begin : end + 1]) <= images:
            end += 1
        yield _SomeShards(data, begin, end), end
        begin = end


class _SomeShards(StreamView):
    """Consecutive shards of another stream."""

    def __init__(self, parent: Stream, begin: int, end: int) -> None:
        super().__init__(parent)
        self.begin, self.shards = begin, parent.shards[begin:end]

    def read(self, shard: int) -> Iterator[Item]:
        return self.parent.read(self.begin + shard)

    def shard_lengths(self) -> tuple[int, ...] | None:
        lengths = self.parent.shard_lengths()
        return None if lengths is None else lengths[self.begin : self.begin + len(self.shards)]


# The file while it is made ---------------------------------------------------------------------------------------------


class PartialFile:
    """`FILE.part`, room for the header and the features so far, and `FILE.part.jsonl`: what they depend on, then a line for
    each segment. Used as a context manager, under a lock; until the first segment is done there is neither."""

    _file: IO[bytes]

    def __init__(self, out: Path, about: Mapping[str, Any]) -> None:
        self.out, self.about = out, json.loads(json.dumps(about))
        self.path, self.journal = beside(out, ".part"), beside(out, ".part.jsonl")
        self.shape: tuple[int, ...] = ()
        self.rows = Rows()
        self.done: dict[str, tuple[int, int]] = {}  # of each split: where its last segment ended, and how many items that is
        self._open = contextlib.ExitStack()

    def __enter__(self) -> PartialFile:
        refusal = f"--out {self.out}: another process is writing to it just now; wait for it, or end it"
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(beside(self.out, ".lock"), refusal))
            if self.journal.exists():
                self._resume()
            self._open = stack.pop_all()
        return self

    def _resume(self) -> None:
        lines = whole_lines(self.journal, quotes=False)
        end = 0
        try:
            for number, (end, line) in enumerate(lines):  # noqa: B007
                record = parse_json(line, most=1 << 30)
                if number == 0:
                    refuse_difference(self.out, record, self.about)
                else:
                    self._add(record)
            size = header_bytes(self.about) + 4 * len(self.rows) * int(np.prod(self.shape))
            if len(self.rows) and self.path.stat().st_size < size:
                raise ValueError(f"{self.path.name} is shorter than it says")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VitreousError(
                f"{self.journal}: cannot be read ({one_line(error, 80)}); remove it and {self.path.name} to start over"
            ) from error
        with self.journal.open("r+b") as file:
            file.truncate(end)  # without a truncated line

    def _add(self, record: Mapping[str, Any]) -> None:
        self.rows.add(record["split"], record["ids"], record["labels"], record["numbers"], record["bad"])
        self.done[record["split"]] = (int(record["end"]), int(record["numbered"]))
        self.shape = tuple(record["shape"])

    def append(self, split: str, found: Features, before: int, done: tuple[int, int]) -> None:
        """The features of a segment, of which `before` items of its split came earlier."""
        record = {
            "split": split,
            "ids": found.ids,
            "labels": found.labels,
            "numbers": (found.numbers + before).tolist(),
            "bad": found.bad,
            "shape": found.values.shape[1:] if len(found) else self.shape,
            "end": done[0],
            "numbered": done[1],
        }
        try:
            with self.path.open("r+b" if self.path.exists() else "w+b") as file:
                file.seek(header_bytes(self.about) + 4 * len(self.rows) * int(np.prod(self.shape)))
                file.write(np.ascontiguousarray(found.values, "<f4").data)
            with self.journal.open("ab") as file:
                start = "" if file.tell() else json.dumps(self.about) + "\n"
                file.write(f"{start}{json.dumps(record)}\n".encode("ascii"))
        except OSError as error:
            raise VitreousError(
                f"--out {self.out}: cannot write ({error.strerror or error}); free some space and start the same command "
                f"again: it resumes after the {len(self.rows):,} images that are there"
            ) from error
        self._add(record)

    def finish(self) -> None:
        with self.path.open("r+b") as file:
            finish_file(file, self.about, self.shape, self.rows)
        flush_to_disk(self.path)

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)

    def __exit__(self, *error: object) -> None:
        self._open.close()
