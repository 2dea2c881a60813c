"""`vitreous choose` as a whole: from a few labelled images and many without labels to a list of those to label next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitreous.classifier import Classifier, load
from vitreous.core.device import choose_device
from vitreous.core.distributed import World, init_distributed
from vitreous.core.errors import VitreousError, check_at_least
from vitreous.core.files import write_text
from vitreous.core.output_dir import check_outside, check_writable, find_data_folder
from vitreous.core.table import table
from vitreous.data.open import open_data
from vitreous.data.source import ALL, Dataset, Policy, Source, Stream
from vitreous.data.sources.manifest import ENDINGS, Row, relative_path, write_manifest
from vitreous.evaluation.choose import PoolPredictions, Strategy, choose_images, has_two_classes
from vitreous.evaluation.fewshot_tasks import keep_labelled
from vitreous.inference.distributed_pass import read_contents
from vitreous.inference.embed_run import check_finite
from vitreous.inference.engines.choose import choose_engine
from vitreous.inference.engines.engine import EngineOption, check_engine
from vitreous.inference.features import Features, compute_features
from vitreous.inference.precision import agreed_precision
from vitreous.inference.runner import default_batch_size
from vitreous.inference.similar_page import UNREADABLE, render_images
from vitreous.inference.thumbnails import embed_thumbnail
from vitreous.models.config import Size
from vitreous.reports.images import Figure

_ON_PAGE = 500  # images; a page of more is slow to open


@dataclass(frozen=True, kw_only=True)
class ChooseOptions:
    """What to choose from and how; checked when it is made, before anything is loaded."""

    checkpoint: str
    data: str | None  # None: nothing is labelled yet
    unlabelled: str
    count: int
    strategy: Strategy
    seed: int
    out: Path | None
    image_size: Size | None
    cache: bool
    bad_images: Policy
    batch_size: int | None
    workers: int | None
    device: str
    precision: Literal["auto", "float32", "bfloat16"]
    engine: EngineOption = "torch"

    def __post_init__(self) -> None:
        check_engine(self.engine)
        check_at_least(1, count=self.count, batch_size=self.batch_size)
        check_at_least(0, seed=self.seed, workers=self.workers)
        if self.data is None and self.strategy == "uncertainty":
            raise VitreousError("--strategy uncertainty: needs labelled images to be uncertain between; name them as DATA")
        if self.out is None:
            return
        if self.out.suffix.lower() not in ENDINGS:
            raise VitreousError(f"--out {self.out}: a manifest is written; give it a name that ends in {', '.join(ENDINGS)}")
        if os.path.lexists(self.out):
            raise VitreousError(f"--out {self.out}: is there already, and labels in it would be lost; choose another name")
        for name in filter(None, (self.data, self.unlabelled)):
            check_outside(self.page, find_data_folder(name))
        check_writable("--out", self.out)

    @property
    def page(self) -> Path:
        assert self.out is not None
        return self.out.with_suffix(".html")


@dataclass(frozen=True)
class ChosenImage:
    """An image to label, with the two most likely classes if a head could be fitted."""

    id: str
    path: str | None  # of the file that holds it and nothing else
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    margin: float | None

    def most_likely(self) -> str:
        return ", ".join(f"{name} {share:.0%}" for name, share in zip(self.classes, self.probabilities, strict=True))

    def record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "path": self.path,
            "classes": self.classes,
            "probabilities": self.probabilities,
            "margin": self.margin,
        }


@dataclass(frozen=True)
class ChosenImages:
    """The images to label next, the most useful first."""

    images: tuple[ChosenImage, ...]
    pool: int  # how many there were to choose from
    labelled: int
    strategy: Strategy  # as it was carried out
    notes: tuple[str, ...]
    out: str | None = None
    page: str | None = None
    exit_code: int = 0

    def text(self) -> str:
        rows = [(number, image.id, image.most_likely() or "-") for number, image in enumerate(self.images, start=1)]
        lines = [table(("", "image", "most likely"), rows), "", self.verdict()]
        if self.out is not None:
            lines += [f"{self.out}: fill in the label column; {self.page}: the same with thumbnails"]
        return "\n".join(lines)

    def verdict(self) -> str:
        return f"{len(self.images):,} of {self.pool:,} images, by {self.strategy}; {self.labelled:,} are labelled already"

    def records(self) -> Iterator[dict[str, Any]]:
        return (image.record() for image in self.images)


def run_choose(options: ChooseOptions) -> ChosenImages:
    dataset = open_data(options.data, bad_shards=options.bad_images) if options.data is not None else None
    unlabelled = open_data(options.unlabelled, bad_shards=options.bad_images)
    source = _training_split(unlabelled, f"--unlabelled {options.unlabelled}")
    known = _training_split(dataset, options.data or "") if dataset is not None else None
    if options.out is not None and not _is_files(source):
        raise VitreousError(
            f"--out {options.out}: the images of {options.unlabelled} are not files of their own, which a manifest lists; "
            f"leave out --out"
        )
    free = _without_label(source, dataset)
    if free is not None:
        if len(free) and not free.any():
            raise VitreousError(f"--unlabelled {options.unlabelled}: every image in it has a label in {options.data} already")
        _check_count(options, int(free.sum()))
    clf = load(options.checkpoint, image_size=options.image_size)
    with init_distributed(choose_device(options.device)) as world:
        precision = agreed_precision(options.precision, world)
        batch_size = options.batch_size or default_batch_size(clf.preprocess, world.device)
        how = choose_engine(clf, options.engine, world=world, precision=precision.name, batch_size=batch_size)
        notes = [*clf.notes, *how, *([precision.note] if precision.note else []), clf.preprocessing_note()]
        notes += [note for opened in (dataset, unlabelled) if opened is not None for note in opened.summary()]
        labelled = None
        if dataset is not None and known is not None and dataset.classes:
            found = _features(options, clf, known, precision.name, world)
            labelled = keep_labelled(options.data or "", known, found, notes, "fit to")
        pool = _features(options, clf, source, precision.name, world)
        notes += pool.notes
        rows = np.arange(len(pool)) if free is None else np.flatnonzero(free[pool.numbers])
        if len(rows) < len(pool):
            notes.append(f"{options.unlabelled}: {len(pool) - len(rows):,} images are in {options.data} already")
        _check_count(options, len(rows))  # once more: some may be unreadable
        pool = pool.some(rows)
        strategy = options.strategy
        if strategy in ("combined", "uncertainty") and (labelled is None or not has_two_classes(labelled)):
            few = "no image is labelled" if labelled is None else "all labelled images are of one class"
            if strategy == "uncertainty":
                raise VitreousError(f"--strategy uncertainty: {few}; label images of two classes first, or use diversity")
            strategy = "diversity"
            notes.append(f"{few}, so there is nothing to be uncertain between: chosen by diversity")
        chosen, predictions = choose_images(pool.values, labelled, options.count, strategy, options.seed)
        classes = labelled.classes if labelled is not None else ()
        images = tuple(_describe(source, pool, row, predictions, classes) for row in chosen.tolist())
        count = 0 if labelled is None else len(labelled)
        out, page = (None, None) if options.out is None else (str(options.out), str(options.page))
        result = ChosenImages(images, len(pool), count, strategy, tuple(dict.fromkeys(notes)), out, page)
        if options.out is not None and world.is_main:
            _write(options, result, source, pool.some(chosen))
    return result


def _training_split(dataset: Dataset, name: str) -> Source | Stream:
    """What may be learnt from: images to test on stay unseen."""
    splits = dataset.splits
    for split in ("train", ALL):
        if split in splits:
            return splits[split]
    if len(splits) == 1:
        return next(iter(splits.values()))
    if not splits:
        raise VitreousError(f"{name}: there are no images in it; check the path")
    raise VitreousError(
        f"{name}: has {', '.join(splits)} and no train split; name one, as {dataset.where}:{next(iter(splits))}"
    )


def _is_files(source: Source | Stream) -> bool:
    return isinstance(source, Source) and bool(len(source)) and source.path(0) is not None


def _features(options: ChooseOptions, clf: Classifier, source: Source | Stream, precision: Any, world: World) -> Features:
    found = compute_features(
        clf,
        source,
        batch_size=options.batch_size,
        workers=options.workers,
        precision=precision,
        world=world,
        bad_images=options.bad_images,
        cache=options.cache,
    )
    check_finite(options.checkpoint, found)
    return found


def _without_label(source: Source | Stream, dataset: Dataset | None) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Which images of the pool are not in DATA with a label: in any split, so that no test image is chosen. None: all."""
    if dataset is None or not _is_files(source):
        return None
    assert isinstance(source, Source)
    labelled: set[str | None] = set()
    for part in dataset.splits.values():
        if isinstance(part, Source):
            labelled |= {_real(part.path(index)) for index in range(len(part)) if part.labels(index)}
    return np.array([_real(source.path(index)) not in labelled for index in range(len(source))], bool)


def _check_count(options: ChooseOptions, unlabelled: int) -> None:
    if options.count > unlabelled:
        raise VitreousError(
            f"--count {options.count}: {options.unlabelled} has {unlabelled:,} images without a label; choose fewer"
        )


def _real(path: str | None) -> str | None:
    return None if path is None else os.path.realpath(path)


def _describe(
    source: Source | Stream, pool: Features, row: int, predictions: PoolPredictions | None, classes: tuple[str, ...]
) -> ChosenImage:
    path = source.path(int(pool.numbers[row])) if isinstance(source, Source) else None
    if predictions is None:
        return ChosenImage(pool.ids[row], path, (), (), None)
    names = tuple(classes[label] for label in predictions.classes[row].tolist())
    return ChosenImage(
        pool.ids[row], path, names, tuple(predictions.probabilities[row].tolist()), float(predictions.margins[row])
    )


def _write(options: ChooseOptions, result: ChosenImages, source: Source | Stream, chosen: Features) -> None:
    """The page first: a manifest that is there means that both are."""
    assert options.out is not None
    shown = list(range(min(len(chosen), _ON_PAGE)))
    contents = read_contents(source, chosen.numbers, chosen.ids, shown)
    thumbnails = {row: embed_thumbnail(content, chosen.ids[row]) for row, content in contents}
    figures = [
        Figure(thumbnails.get(row) or UNREADABLE, alt=image.id, caption=image.id, about=image.most_likely())
        for row, image in enumerate(result.images[:_ON_PAGE])
    ]
    about = f"the first {_ON_PAGE:,} of them" if len(chosen) > _ON_PAGE else ""
    section = {"title": "To label, the most useful first", "about": about, "asked": [], "figures": figures}
    facts = f"{options.checkpoint} · {options.data or 'no labels yet'} · {options.unlabelled}"
    legend = "Under an image: the two most likely classes by the images that are labelled already."
    write_text(options.page, render_images("Images to label next", result.verdict(), facts, [section], legend))
    base = options.out.parent.resolve()
    rows: list[Row] = [(relative_path(str(Path(image.path or "").absolute()), base), (), "") for image in result.images]
    write_manifest(options.out, rows)
