"""Run an evaluation from its options to its metrics and its output folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.classifier import Classifier, load
from vitreous.core.device import PrecisionOption, choose_device
from vitreous.core.distributed import World, init_distributed
from vitreous.core.errors import VitreousError, check_at_least
from vitreous.core.output_dir import find_data_folder
from vitreous.data.conventions import SPLIT_NAMES
from vitreous.data.open import open_data
from vitreous.data.source import Dataset, Policy, Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.accuracy import check_data, compute_metrics, real_accuracy
from vitreous.evaluation.class_mapping import Among, ClassMapping, read_mapping
from vitreous.evaluation.evaluation_dir import check_evaluation_dir, write_evaluation_dir
from vitreous.evaluation.evaluation_report import write_evaluation_report
from vitreous.evaluation.evaluation_result import EvaluationResult
from vitreous.evaluation.intervals import Method
from vitreous.evaluation.mcnemar import compare_predictions
from vitreous.evaluation.predictions import Predictions, classes_there, natural_mapping, predict_dataset
from vitreous.evaluation.robustness import measure_robustness
from vitreous.inference.features import compute_features
from vitreous.inference.precision import agreed_precision
from vitreous.models.token_merging import set_token_merging


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
    merge_tokens: int = 0  # of the first checkpoint; `compare` is measured as it is
    bad_images: Policy = "stop"
    seed: int = 0
    data_seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size, robustness_images=self.robustness_images)
        check_at_least(0, workers=self.workers, merge_tokens=self.merge_tokens)
        if self.nearest is not None and self.out is None:
            raise VitreousError("--nearest shows images on a page, which needs a place: give --out DIR")


@dataclass(frozen=True, eq=False)
class _Subject:
    """A checkpoint that is measured."""

    name: str
    clf: Classifier
    preprocess: Preprocess
    mapping: ClassMapping

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
    precision = agreed_precision(options.precision, world)  # before the first forward pass
    dataset = open_data(options.data, bad_shards=options.bad_images)
    source, notes = _select_split(dataset, options.split)
    check_data(source, options.real)
    training = None
    if options.nearest is not None:
        splits = open_data(options.nearest, bad_shards=options.bad_images).splits
        training = splits["train"] if "train" in splits else next(iter(splits.values()))
    own = _load_subject(options.checkpoint, source, options, options.image_size, options.preprocess)
    set_token_merging(own.clf.model, options.merge_tokens)
    other = _load_subject(options.compare, source, options) if options.compare is not None else None
    how: dict[str, Any] = {"batch_size": options.batch_size, "workers": options.workers, "precision": precision.name}
    how |= {"device": world.device, "world": world}

    predictions, numbers = _measure(options, own, source, how, features=training is not None)
    said = [precision.note or "", *dataset.summary(), *notes, *own.said(), *own.mapping.notes, *predictions.notes]
    said += _unread(predictions.where, predictions.bad)
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
        if world.is_main:
            write_evaluation_dir(
                options.out,
                numbers,
                predictions,
                lambda folder: write_evaluation_report(folder, own.clf, source, predictions, numbers, **shown),
            )
    return numbers, tuple(dict.fromkeys(note for note in said if note))


def _measure(
    options: EvaluateOptions, subject: _Subject, source: Source | Stream, how: Mapping[str, Any], features: bool = False
) -> tuple[Predictions, dict[str, Any]]:
    predictions = predict_dataset(
        subject.clf,
        source,
        preprocess=subject.preprocess,
        bad_images=options.bad_images,
        mapping=subject.mapping,
        features=features,
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
        **({"merge_tokens": merging} if (merging := getattr(subject.clf.model, "merge_tokens", 0)) else {}),
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
) -> _Subject:
    given = Preprocess(preprocess).size if preprocess is not None else None
    if image_size is not None and given not in (None, image_size):
        size = f"{image_size[0]},{image_size[1]}"
        raise VitreousError(f"--image-size {size} and --preprocess {preprocess}: two different sizes; give one of them")
    clf = load(checkpoint, image_size=image_size or given)
    if not clf.config.classes:
        raise VitreousError(f"{checkpoint}: has no head, so it names no classes; measure its features with `vitreous fewshot`")
    if clf.config.classes < 2:
        raise VitreousError(f"{checkpoint}: knows one class only, so that it is always right; there is nothing to measure")
    ours = Preprocess(preprocess, clf.config.channels) if preprocess is not None else clf.preprocess
    if options.mapping is None:
        return _Subject(checkpoint, clf, ours, natural_mapping(clf, source, options.among))
    there = classes_there(source)
    mapping = read_mapping(options.mapping, source.classes, clf.classes, there=there, among=options.among)
    return _Subject(checkpoint, clf, ours, mapping)


def _unread(where: str, bad: Sequence[tuple[str, str]]) -> list[str]:
    more = f" and {len(bad) - 1:,} more" if len(bad) > 1 else ""
    return [f"{where}: left out what could not be read: {place} ({why}){more}" for place, why in bad[:1]]
