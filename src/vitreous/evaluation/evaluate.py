"""Run an evaluation from its options to its metrics and its output folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitreous.classifier import Classifier, load
from vitreous.core.device import PrecisionOption, choose_device
from vitreous.core.distributed import World, init_distributed
from vitreous.core.errors import VitreousError, check_at_least, check_share
from vitreous.core.output_dir import find_data_folder
from vitreous.data.conventions import SPLIT_NAMES
from vitreous.data.open import open_data
from vitreous.data.source import Dataset, Policy, Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.accuracy import check_data, compute_metrics, real_accuracy
from vitreous.evaluation.class_mapping import Among, ClassMapping, read_mapping
from vitreous.evaluation.coverage import checkpoint_folder, hash_images, measure_coverage, save_calibration
from vitreous.evaluation.evaluation_dir import SOUP, check_evaluation_dir, write_evaluation_dir
from vitreous.evaluation.evaluation_report import write_evaluation_report
from vitreous.evaluation.evaluation_result import EvaluationResult
from vitreous.evaluation.intervals import Method
from vitreous.evaluation.mcnemar import compare_predictions
from vitreous.evaluation.predictions import Predictions, classes_there, natural_mapping, predict_dataset
from vitreous.evaluation.robustness import measure_robustness
from vitreous.evaluation.soup import average_checkpoints
from vitreous.inference.engines.choose import choose_engine
from vitreous.inference.engines.engine import EngineOption, check_engine
from vitreous.inference.features import compute_features
from vitreous.inference.precision import agreed_precision
from vitreous.inference.prediction_sets import PredictionSets, build_prediction_sets
from vitreous.inference.runner import default_batch_size
from vitreous.models.token_merging import set_token_merging
from vitreous.weights.transfer import adapt

Augmentation = Literal["none", "flip"]


@dataclass(frozen=True)
class EvaluateOptions:
    """See `vitreous evaluate --help`."""

    checkpoint: str
    data: str
    split: str | None = None
    out: Path | None = None
    compare: str | None = None
    real: Path | None = None
    mapping: Path | None = None
    among: Among = "all"
    interval: Method = "wilson"
    robustness_images: int | None = None  # None: not asked for
    nearest: str | None = None
    image_size: tuple[int, int] | None = None
    preprocess: str | None = None
    batch_size: int | None = None
    workers: int | None = None
    device: str = "auto"
    precision: PrecisionOption = "float32"
    engine: EngineOption = "torch"  # the same for `compare`
    merge_tokens: int = 0  # of the first checkpoint; `compare` is measured as it is
    coverage: float | None = None  # of prediction sets; None: not asked for
    save_calibration: bool = False
    tta: Augmentation = "none"  # of both
    soup: tuple[str, ...] = ()  # further checkpoints, averaged with the first
    bad_images: Policy = "stop"
    seed: int = 0
    data_seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size, robustness_images=self.robustness_images)
        check_at_least(0, workers=self.workers, merge_tokens=self.merge_tokens)
        check_share(coverage=self.coverage)
        sets = "--save-calibration" if self.save_calibration else "--coverage" if self.coverage is not None else None
        if self.save_calibration and self.coverage is not None:
            raise VitreousError(
                "--coverage on the images of --save-calibration is no measurement; measure it on others afterwards"
            )
        if sets is not None and (self.mapping is not None or self.among != "all"):
            raise VitreousError(f"{sets}: is for the classes of the model; leave out --mapping and --among")
        if sets is not None and (self.tta != "none" or self.soup):
            raise VitreousError(f"{sets}: is of one checkpoint in one pass; leave out --tta and --soup")
        check_engine(self.engine)
        if self.nearest is not None and self.out is None:
            raise VitreousError("--nearest shows images on a page, which needs a place: give --out DIR")
        if self.tta != "none" and self.robustness_images is not None:
            raise VitreousError(f"--robustness is measured without --tta {self.tta}; leave one of them out")


@dataclass(frozen=True, eq=False)
class _Subject:
    """A checkpoint that is measured."""

    name: str
    clf: Classifier
    preprocess: Preprocess
    mapping: ClassMapping
    averaged: bool = False  # the average of several checkpoints

    def said(self) -> tuple[str, ...]:
        return (*self.clf.notes, self.clf.preprocessing_note(self.preprocess))


def run_evaluation(options: EvaluateOptions) -> EvaluationResult:
    with init_distributed(choose_device(options.device)) as world:
        numbers, notes = _evaluate(options, world)
    return EvaluationResult(numbers, None if options.out is None else str(options.out), notes)


def _evaluate(options: EvaluateOptions, world: World) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The numbers of `evaluate --json`, and notes. Every process runs its share and gets all; the first one writes."""
    if options.out is not None:
        for place in (options.data, options.nearest):
            check_evaluation_dir(options.out, None if place is None else find_data_folder(place))
    folder = checkpoint_folder(options.checkpoint) if options.save_calibration else None
    precision = agreed_precision(options.precision, world)  # before the first forward pass
    dataset = open_data(options.data, bad_shards=options.bad_images)
    source, notes = _select_split(dataset, options.split)
    check_data(source, options.real)
    training = None
    if options.nearest is not None:
        splits = open_data(options.nearest, bad_shards=options.bad_images).splits
        training = splits["train"] if "train" in splits else next(iter(splits.values()))
    own = _load_subject(options.checkpoint, source, options, options.image_size, options.preprocess, options.soup)
    set_token_merging(own.clf.model, options.merge_tokens)
    sets = None
    if options.coverage is not None:
        how_made: dict[str, Any] = {"preprocess": own.preprocess, "precision": precision.name}
        sets = build_prediction_sets(own.clf, own.name, options.coverage, **how_made)
    if folder is not None and own.clf.sigmoid:
        raise VitreousError(f"--save-calibration: {own.name} gives images several classes (sigmoid); sets are for one each")
    other = _load_subject(options.compare, source, options) if options.compare is not None else None
    engines = [
        note
        for subject in (own, other)
        if subject is not None
        for note in choose_engine(
            subject.clf,
            options.engine,
            world=world,
            precision=precision.name,
            batch_size=options.batch_size or default_batch_size(subject.preprocess, world.device),
        )
    ]
    how: dict[str, Any] = {"batch_size": options.batch_size, "workers": options.workers, "precision": precision.name}
    how |= {"device": world.device, "world": world}

    predictions, numbers = _measure(options, own, source, how, features=training is not None, sets=sets)
    said = [precision.note or "", *engines, *dataset.summary(), *notes, *own.said(), *own.mapping.notes, *predictions.notes]
    said += _unread(predictions.where, predictions.bad)
    if sets is not None:
        numbers["coverage"] = measure_coverage(predictions, sets, options.interval, options.seed)
        if own.clf.conformal.get("images") == hash_images(predictions):
            said.append(f"{own.name} was calibrated on these very images: coverage on them is no measurement; name others")
    if folder is not None and world.is_main:
        numbers["calibration"] = save_calibration(folder, own.clf, predictions, own.preprocess, precision.name)
    others = []
    if other is not None:
        theirs, about = _measure(options, other, source, how)
        pair = compare_predictions(predictions, theirs)
        same = own.name == other.name
        sentence = pair.sentence(own.name + " (first)" * same, other.name + " (second)" * same)
        numbers["compare"] = {**about, "paired": pair.as_dict(), "sentence": sentence}
        others.append((other.name, theirs, about))
        said += [*(f"{other.name}: {note}" for note in other.said()), *other.mapping.notes]
    robustness = None
    if options.robustness_images is not None:
        sample: dict[str, Any] = {"images": options.robustness_images, "seed": options.data_seed}
        robustness = measure_robustness(own.clf, source, predictions, preprocess=own.preprocess, **sample, **how)
        numbers["robustness"] = robustness.as_dict()
    if options.out is not None:
        known = None
        if training is not None:  # beside the images that are wrong, and in no number: what cannot be read is left out
            known = compute_features(own.clf, training, preprocess=own.preprocess, bad_images="skip", **how)
            said += [*known.notes, *_unread("--nearest", known.bad)]
        shown: dict[str, Any] = {"others": others, "training": known, "training_data": training, "robustness": robustness}
        shown |= {"preprocess": own.preprocess, "device": world.device}

        def write(folder: Path) -> None:
            write_evaluation_report(folder, own.clf, source, predictions, numbers, **shown)
            if own.averaged:
                own.clf.save(folder / SOUP)

        if world.is_main:
            write_evaluation_dir(options.out, numbers, predictions, write)
    return numbers, tuple(dict.fromkeys(note for note in said if note))


def _measure(
    options: EvaluateOptions,
    subject: _Subject,
    source: Source | Stream,
    how: Mapping[str, Any],
    features: bool = False,
    sets: PredictionSets | None = None,
) -> tuple[Predictions, dict[str, Any]]:
    predictions = predict_dataset(
        subject.clf,
        source,
        preprocess=subject.preprocess,
        bad_images=options.bad_images,
        mapping=subject.mapping,
        features=features,
        sets=sets,
        flip=options.tta == "flip",
        title=f"evaluate {subject.name}",
        **how,
    )
    by: dict[str, Any] = {"method": options.interval, "seed": options.seed}
    numbers = {"checkpoint": subject.name, **compute_metrics(predictions, **by)}
    if options.real is not None:
        numbers["real"] = real_accuracy(predictions, options.real, **by)
    return predictions, numbers | {
        "preprocess": str(subject.preprocess),
        "precision": how["precision"],
        "engine": subject.clf.engine.name,
        **({"merge_tokens": merging} if (merging := getattr(subject.clf.model, "merge_tokens", 0)) else {}),
        **({"tta": options.tta} if options.tta != "none" else {}),
        **({"soup": [options.checkpoint, *options.soup]} if subject.averaged else {}),
        "device": str(how["device"]),
        "mapping": options.mapping and str(options.mapping),
        "among": options.among,
        "seed": options.seed,
        "data_seed": options.data_seed,
    }


# Which images, and which model -----------------------------------------------------------------------------------------


def _select_split(dataset: Dataset, split: str | None) -> tuple[Source | Stream, list[str]]:
    """The split that was asked for, or one that measures: what a model has learnt from says little about it."""
    if not dataset.splits:
        raise VitreousError(f"{dataset.where}: there are no images")
    if split is not None:
        return dataset.source(SPLIT_NAMES.get(split, split)), []
    names = list(dataset.splits)
    empty = dataset.empty_splits()
    chosen = next((name for name in ("test", "validation") if name in names or name in empty), names[0])
    if chosen in empty:
        raise VitreousError(
            f"{dataset.where}: its {chosen} split has no images; add some, or choose of {', '.join(names)} with --split"
        )
    if len(names) == 1:
        flatters = f"{dataset.where}: measured on train, its only split; what a model has learnt from flatters it"
        return dataset.splits[chosen], [flatters] if chosen == "train" else []
    if chosen not in ("test", "validation"):
        raise VitreousError(f"{dataset.where}: has {', '.join(names)}; say which to measure on with --split")
    rest = ", ".join(name for name in names if name != chosen)
    return dataset.splits[chosen], [f"{dataset.where}: measured on {chosen}; it has {rest} too"]


def _load_subject(
    checkpoint: str,
    source: Source | Stream,
    options: EvaluateOptions,
    image_size: tuple[int, int] | None = None,
    preprocess: str | None = None,
    soup: tuple[str, ...] = (),
) -> _Subject:
    given = Preprocess(preprocess).size if preprocess is not None else None
    if image_size is not None and given not in (None, image_size):
        size = f"{image_size[0]},{image_size[1]}"
        raise VitreousError(f"--image-size {size} and --preprocess {preprocess}: two different sizes; give one of them")
    if soup:
        clf = Classifier(adapt(average_checkpoints((checkpoint, *soup)), image_size=image_size or given), copy=False)
    else:
        clf = load(checkpoint, image_size=image_size or given)
    if not clf.config.classes:
        raise VitreousError(
            f"{checkpoint}: has no head, so it names no classes; measure its features with `vitreous fewshot`, whose --save "
            f"gives it a head"
        )
    if clf.config.classes < 2:
        raise VitreousError(f"{checkpoint}: knows one class only, so that it is always right; there is nothing to measure")
    ours = Preprocess(preprocess, clf.config.channels) if preprocess is not None else clf.preprocess
    if options.mapping is None:
        return _Subject(checkpoint, clf, ours, natural_mapping(clf, source, options.among), bool(soup))
    there = classes_there(source)
    mapping = read_mapping(options.mapping, source.classes, clf.classes, there=there, among=options.among)
    return _Subject(checkpoint, clf, ours, mapping, bool(soup))


def _unread(where: str, bad: Sequence[tuple[str, str]]) -> list[str]:
    more = f" and {len(bad) - 1:,} more" if len(bad) > 1 else ""
    return [f"{where}: left out what could not be read: {place} ({why}){more}" for place, why in bad[:1]]
