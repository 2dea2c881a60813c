"""`vitreous fewshot --dense` as a whole: masks from patch features, fitted to a few annotated images, beside two baselines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitreous.classifier import Classifier, load
from vitreous.core.device import PrecisionName, choose_device, choose_precision
from vitreous.core.errors import VitreousError, check_at_least, first_few
from vitreous.core.files import atomic_folder
from vitreous.core.output_dir import check_result_folder, find_data_folder
from vitreous.core.progress import progress_bar, silence
from vitreous.core.table import table
from vitreous.data.masks import Masks, check_masks, find_masks, without_masks
from vitreous.data.open import open_data
from vitreous.data.sampling import derive_key
from vitreous.data.source import Policy, Source
from vitreous.data.transforms.decode import decode
from vitreous.data.transforms.ops import Resize, ResizeSmall
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.dense import (
    IGNORED,
    DenseFit,
    Grid,
    colour_features,
    count_confusion,
    fit_dense,
    iou,
    label_patches,
    label_pixels,
    mean_iou,
    predict_mask,
)
from vitreous.evaluation.dense_figure import MaskExample, draw_masks
from vitreous.evaluation.fewshot import Shots
from vitreous.evaluation.fewshot_tasks import HELD_OUT
from vitreous.evaluation.saved_head import format_l2
from vitreous.inference.features import compute_features
from vitreous.models.config import Size
from vitreous.models.vit import ViT

RECORD, MADE_BY = "dense.json", "vitreous fewshot --dense"
FILES = (RECORD, "masks.png", "masks.svg", "predicted")
SHOTS = (1, 5, 10, 20)
EXAMPLES = 8  # test images that are drawn
_TOGETHER = 64  # test images whose patch features are in memory at once
_NAMED = 6  # classes up to which each has a column


@dataclass(frozen=True, kw_only=True)
class DenseOptions:
    """What is measured and how; checked when it is made, before anything is loaded."""

    checkpoint: str
    data: str
    masks: Path | None
    ignored: tuple[int, ...]
    shots: tuple[Shots, ...] | None
    seeds: int
    seed: int
    data_seed: int
    l2: float | Literal["leave-one-out", "joint"]
    out: Path | None
    image_size: Size | None
    cache: bool
    bad_images: Policy
    batch_size: int | None
    workers: int | None
    device: str
    precision: Literal["auto", "float32", "bfloat16"]

    def __post_init__(self) -> None:
        check_at_least(0, seed=self.seed, data_seed=self.data_seed, workers=self.workers)
        check_at_least(1, seeds=self.seeds, batch_size=self.batch_size)
        if self.l2 == "joint":
            raise VitreousError("--l2 joint: not with --dense; give a number, or leave-one-out: images are left out in turn")
        if self.out is not None:
            check_result_folder(self.out, RECORD, MADE_BY, FILES, find_data_folder(self.data))


@dataclass(frozen=True, eq=False)
class DenseResult:
    """One drawing of annotated images, one fit, evaluated on all test images."""

    shots: Shots
    seed: int | None  # None where nothing was drawn
    l2: float
    confusion: NDArray[np.int64]  # pixels, (C, C), of each class and taken for which
    colour: NDArray[np.int64]  # the same of the fit to colour and place
    constant: NDArray[np.int64]  # and of always predicting the most frequent class
    n_train: int
    n_test: int

    def record(self, classes: Sequence[int]) -> dict[str, Any]:
        each = {str(value): found for value, found in zip(classes, iou(self.confusion).tolist(), strict=True)}
        return {
            "shots": self.shots,
            "seed": self.seed,
            "l2": self.l2,
            "mean_iou": mean_iou(self.confusion),
            "iou": each,
            "pixel_accuracy": float(np.trace(self.confusion) / self.confusion.sum()),
            "colour": mean_iou(self.colour),
            "constant": mean_iou(self.constant),
            "n_train": self.n_train,
            "n_test": self.n_test,
        }


@dataclass(frozen=True)
class Dense:
    """What a few annotated masks are worth with this checkpoint's frozen patch features."""

    results: tuple[DenseResult, ...]
    classes: tuple[int, ...]  # values of pixels
    about: Mapping[str, Any]
    notes: tuple[str, ...]
    out: str | None = None
    exit_code: int = 0

    def text(self) -> str:
        each = len(self.classes) <= _NAMED
        headings = ["annotated images", "mean IoU", *(f"class {value}" for value in self.classes if each), "colour and place",
                    "constant", "seeds", "l2"]  # fmt: skip
        rows = []
        for shots in dict.fromkeys(found.shots for found in self.results):
            own = [found for found in self.results if found.shots == shots]
            classes = np.stack([iou(found.confusion) for found in own]).mean(axis=0)
            cells = [_percent(float(value)) for value in classes] if each else []
            l2 = ", ".join(format_l2(l2) for l2 in sorted({found.l2 for found in own}))
            measured = [
                _spread([mean_iou(getattr(found, kind)) for found in own]) for kind in ("confusion", "colour", "constant")
            ]
            name = f"all ({own[0].n_train:,})" if shots == "all" else str(shots)
            rows.append((name, measured[0], *cells, *measured[1:], len(own), l2))
        lines = [table(headings, rows), f"{self.results[0].n_test:,} test images, evaluated at the size of their masks"]
        return "\n".join([*lines, *([f"{self.out}: dense.json, masks.png and .svg, predicted/"] if self.out else [])])

    def record(self) -> dict[str, Any]:
        return {"results": [found.record(self.classes) for found in self.results], "classes": self.classes, **self.about}

    def records(self) -> Iterator[dict[str, Any]]:
        yield self.record()


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _spread(values: Sequence[float]) -> str:
    mean = _percent(float(np.mean(values)))
    return f"{mean} ± {100 * float(np.std(values, ddof=1)):.1f} %" if len(values) > 1 else f"{mean} %"


# From options to results ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Part:
    """Images, and how many pixels of each value their masks have."""

    source: Source
    counts: NDArray[np.int64]  # (images, 256)


@dataclass(frozen=True, eq=False)
class _Drawing:
    shots: Shots
    seed: int | None
    rows: NDArray[np.int64]  # of the training images


@dataclass(frozen=True, eq=False)
class _Fit:
    drawing: _Drawing
    features: DenseFit
    colour: DenseFit
    largest: int  # the class of most annotated patches
    n_train: int


def run_dense(options: DenseOptions) -> Dense:
    masks = find_masks(options.data, options.masks, options.ignored)
    train, test, notes = _open_parts(options, masks)
    classes = _find_classes(options, train, test)
    drawings = _draw(options, train, classes)
    clf = load(options.checkpoint, image_size=options.image_size)
    if not isinstance(clf.model, ViT):
        raise VitreousError(f"--dense: {clf.config.name} has no patch tokens; give a Vision Transformer")
    preprocess = whole_image(clf)
    device = choose_device(options.device)
    precision = choose_precision(options.precision, device)
    task = _Task(options, masks, classes, clf, preprocess, device, precision.name, notes := [*notes])
    fits = task.fit(train.source, drawings)
    results, examples = task.evaluate(test.source, fits)
    notes = [*clf.notes, *([precision.note] if precision.note else []), f"preprocessing {preprocess}", *notes]
    about = {
        "checkpoint": options.checkpoint,
        "data": options.data,
        "masks": str(masks.folder),
        "ignored": masks.ignored,
        "preprocess": str(preprocess),
        "precision": precision.name,
        **{name: getattr(options, name) for name in ("l2", "data_seed")},
    }
    found = Dense(tuple(results), tuple(classes.tolist()), about, tuple(notes), str(options.out) if options.out else None)
    if options.out is not None:
        with atomic_folder(options.out) as part:
            draw_masks(examples, len(classes), part)
            record = json.dumps({"made_by": MADE_BY, **found.record()}, indent=1)
            (part / RECORD).write_text(record + "\n", encoding="utf-8")
    return found


def whole_image(clf: Classifier) -> Preprocess:
    """The checkpoint's pixel values and filter, for all of an image at the checkpoint's size: a crop would leave parts of the
    mask without features."""
    height, width = clf.evaluation_size
    filters = [op.filter for op in clf.preprocess.ops if isinstance(op, (Resize, ResizeSmall))]
    resize = f"resize({height},{width},{filters[0] if filters else 'bilinear'})"
    return Preprocess("|".join([resize, *map(str, clf.preprocess.scales)]), clf.config.channels)


def _open_parts(options: DenseOptions, masks: Masks) -> tuple[_Part, _Part, list[str]]:
    """Images to draw from and images to evaluate on; where there are no splits, some are held out by the data seed."""
    dataset = open_data(options.data, bad_shards=options.bad_images)
    notes = [*dataset.summary()]
    parts = {name: without_masks(part, masks, options.data) for name, part in dataset.splits.items()}
    held = next((parts[name] for name in ("test", "validation") if name in parts), None)
    if "train" in parts and held is not None:
        train, test = parts["train"], held
        notes.append(f"annotated images are drawn from {train.split}, evaluated on {test.split}")
    else:
        whole = next(iter(parts.values()))
        order = _order(whole, "dense-split", options.data_seed)
        count = round(HELD_OUT * len(whole))
        train, test = whole.subset(np.sort(order[count:]), "train"), whole.subset(np.sort(order[:count]), "test")
        notes.append(f"no test split: held out {count:,} of {len(whole):,} images, data seed {options.data_seed}")
    for part in (train, test):
        if not len(part):
            raise VitreousError(f"{options.data}: its {part.split} split has no images; --dense needs some of both")
    first, second = (_Part(part, check_masks(masks, part, options.bad_images)) for part in (train, test))
    return first, second, notes


def _order(source: Source, word: str, seed: int) -> NDArray[np.int64]:
    """The seed's order, by ids alone: the same wherever the files lie."""
    keys = np.array([derive_key(word, seed, source.id(index)) for index in range(len(source))], np.uint64)
    return np.argsort(keys, kind="stable")


def _find_classes(options: DenseOptions, train: _Part, test: _Part) -> NDArray[np.int64]:
    """The values of training masks."""
    classes = np.flatnonzero(train.counts.sum(axis=0))
    if len(classes) < 2:
        only = f"only the value {classes[0]}" if len(classes) else "no value"
        without = f" beside those ignored ({', '.join(map(str, options.ignored))})" if options.ignored else ""
        raise VitreousError(f"{options.data}: its training masks have {only}{without}; there is nothing to tell apart")
    unknown = sorted(set(np.flatnonzero(test.counts.sum(axis=0)).tolist()) - set(classes.tolist()))
    if unknown:
        where = test.source.id(int(np.flatnonzero(test.counts[:, unknown[0]])[0]))
        raise VitreousError(
            f"{options.data}: the value {unknown[0]} is in the test mask of {where} and in no training mask; "
            f"correct the mask, or give --ignore {','.join(map(str, [*options.ignored, *unknown]))}"
        )
    return classes


def _draw(options: DenseOptions, train: _Part, classes: NDArray[np.int64]) -> list[_Drawing]:
    """Of each number of shots and seed the first so many in the seed's order: smaller subsets lie in larger ones."""
    usable = np.flatnonzero(train.counts.sum(axis=1))
    shots = options.shots or tuple(number for number in SHOTS if number <= len(usable))
    if (most := max((number for number in shots if number != "all"), default=1)) > len(usable):
        raise VitreousError(f"--shots {most}: {options.data} has {len(usable):,} annotated training images; use fewer")
    drawings = []
    for number in shots:
        for seed in [None] if number == "all" else range(options.seed, options.seed + options.seeds):
            ranked = np.arange(len(train.source)) if seed is None else _order(train.source, "dense", seed)
            order = ranked[np.isin(ranked, usable)]
            rows = order if number == "all" else order[:number]
            there = np.flatnonzero(train.counts[rows].sum(axis=0)[classes])
            if len(there) < 2:
                names = first_few([train.source.id(int(row)) for row in rows], 2)
                raise VitreousError(
                    f"--shots {number}: the masks drawn by seed {seed} ({names}) have the value {classes[there[0]]} only, "
                    f"so there is nothing to tell apart; use more --shots, or another --seed"
                )
            drawings.append(_Drawing(number, seed, np.sort(rows)))
    return drawings


@dataclass(frozen=True, eq=False)
class _Task:
    """Everything that fitting and evaluating need beside the images."""

    options: DenseOptions
    masks: Masks
    classes: NDArray[np.int64]
    clf: Classifier
    preprocess: Preprocess
    device: str
    precision: PrecisionName
    notes: list[str]

    @property
    def grid(self) -> Grid:
        found: Grid = self.clf.config.grid_of(self.clf.evaluation_size)
        return found

    def features(self, source: Source) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        """Patch features (n, rows, columns, D) of the images that can be read, and their ids."""
        found = compute_features(
            self.clf,
            source,
            preprocess=self.preprocess,
            batch_size=self.options.batch_size,
            workers=self.options.workers,
            device=self.device,
            precision=self.precision,
            bad_images=self.options.bad_images,
            cache=self.options.cache,
            kind="patches",
        )
        self.notes.extend(f"left out {place} ({why}), which cannot be read" for place, why in found.bad)
        if not np.isfinite(found.values).all():
            raise VitreousError(f"{self.options.checkpoint}: gives features that are not finite; check the weights")
        return found.values.reshape(len(found.ids), *self.grid, -1), found.ids

    def pixels(self, id: str) -> NDArray[np.int64]:
        return label_pixels(self.masks.read(id), self.classes)

    def colours(self, source: Source, ids: Sequence[str]) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.float32]]]:
        """Every image, and the colour features of its patches."""
        rows = {source.id(index): index for index in range(len(source))}
        for id in ids:
            image = np.asarray(decode(source.read(rows[id]), place=source.place(rows[id])))
            yield image, colour_features(image, self.grid)

    def fit(self, train: Source, drawings: Sequence[_Drawing]) -> list[_Fit]:
        """Features of all drawn images are computed once."""
        drawn = np.unique(np.concatenate([drawing.rows for drawing in drawings]))
        source = train.subset(drawn)
        features, ids = self.features(source)
        labels = np.stack([label_patches(self.pixels(id), self.grid, len(self.classes)) for id in ids])
        colours = np.stack([own for _, own in self.colours(source, ids)])
        places = {id: place for place, id in enumerate(ids)}
        fits = []
        with progress_bar("fits", len(drawings)) as advance:
            for drawing in drawings:
                rows = [places[train.id(int(row))] for row in drawing.rows if train.id(int(row)) in places]
                own, classes = labels[rows], len(self.classes)
                if len(set(own.ravel().tolist()) - {IGNORED}) < 2:
                    raise VitreousError(
                        f"--shots {drawing.shots}: the masks drawn by seed {drawing.seed} have one class only, patch by patch; "
                        f"use more --shots, or a larger --image-size"
                    )
                l2 = None if self.options.l2 == "leave-one-out" else float(self.options.l2)
                largest = int(np.bincount(own[own != IGNORED], minlength=classes).argmax())
                fitted, coloured = (fit_dense(values[rows], own, classes, l2) for values in (features, colours))
                fits.append(_Fit(drawing, fitted, coloured, largest, len(rows)))
                advance(1)
        return fits

    def evaluate(self, test: Source, fits: Sequence[_Fit]) -> tuple[list[DenseResult], list[MaskExample]]:
        """All fits in one pass over the test images, some at a time."""
        classes, count, examples = len(self.classes), 0, []
        found = np.zeros((len(fits), 3, classes, classes), np.int64)
        shown = set(_order(test, "dense-examples", self.options.seed)[:EXAMPLES].tolist())
        best = max(range(len(fits)), key=lambda place: (fits[place].n_train, -place))  # that of most images is drawn
        with progress_bar(f"evaluating {test.where} {test.split}", len(test)) as advance:
            for start in range(0, len(test), _TOGETHER):
                part = test.subset(np.arange(start, min(start + _TOGETHER, len(test))))
                with silence():  # of each part; the bar is for all of them
                    features, ids = self.features(part)
                numbers = {part.id(index): start + index for index in range(len(part))}
                for own, id, (image, colours) in zip(features, ids, self.colours(part, ids), strict=True):
                    truth = self.pixels(id)
                    for place, fit in enumerate(fits):
                        named = predict_mask(fit.features.scores(own), truth.shape)
                        coloured = predict_mask(fit.colour.scores(colours), truth.shape)
                        constant = np.full_like(truth, fit.largest)
                        for kind, predicted in enumerate((named, coloured, constant)):
                            found[place, kind] += count_confusion(truth, predicted, classes)
                        if place == best and numbers[id] in shown:
                            examples.append(MaskExample(id, image, truth, named))
                    count += 1
                    advance(1)
        results = [
            DenseResult(fit.drawing.shots, fit.drawing.seed, fit.features.l2, own[0], own[1], own[2], fit.n_train, count)
            for fit, own in zip(fits, found, strict=True)
        ]
        return results, examples
