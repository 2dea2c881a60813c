"""The images of a run: which to train on, which to validate on, and how large they are."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitreous.core.errors import VitreousError
from vitreous.core.progress import progress_bar
from vitreous.data.loading.loader import STREAMS
from vitreous.data.loading.workers import default_workers
from vitreous.data.open import open_data
from vitreous.data.sampling import derive_key
from vitreous.data.source import ALL, Dataset, Source, Stream
from vitreous.data.splits import choose_training_splits, reduce_training_images, split_stratified
from vitreous.data.transforms.decode import BadImage, decode
from vitreous.doctor.header_check import check_headers
from vitreous.training.objectives.build import OBJECTIVES
from vitreous.training.options import TrainOptions

SMALL = 64  # pixels: data sets of such images are trained on at their own size
LOOKED_AT = 16  # images, to find out their size


@dataclass(frozen=True, eq=False)
class RunImages:
    train: Source | Stream
    held_out: Source | Stream | None  # nothing, where there is too little
    test: Source | Stream | None  # for the result alone, where asked for
    classes: tuple[str, ...]
    count: int | None  # to learn from
    size: tuple[int, int] | None  # of the first image, where all are of one size
    channels: int
    labels: float  # of an image, on average; of shards, of the first few
    described: dict[str, Any]  # for config.json
    bad: tuple[BadImage, ...]  # left out beforehand
    decisions: tuple[str, ...]


def choose_images(
    options: TrainOptions, stop_early: bool, dataset: Dataset | None = None, unlabelled: bool = False
) -> RunImages:
    """`stop_early`: somebody will choose by the held-out images, so that they must not be the test set.

    `unlabelled`: images without a label teach something too; otherwise classification leaves them out.
    `dataset` is what `options.data` stands for, where somebody has opened it already and perhaps drawn from it.
    """
    dataset = dataset or open_data(options.data, bad_shards=options.bad_images)
    decisions = list(dataset.summary())
    share = options.held_out or 0.1
    if not dataset.classes and OBJECTIVES[options.objective].classifies:
        other = "--objective masked-patch" if options.command == "pretrain" else "`vitreous pretrain --objective masked-patch`"
        raise VitreousError(f"{options.data}: has no labels to learn; use class folders, or {other}")
    few = options.subset is not None or options.per_class is not None
    if few and "train" in dataset.splits:  # before anything is held out: what chooses belongs to the budget too
        fewer, sentence = reduce_training_images(dataset.splits["train"], options.subset, options.per_class, options.data_seed)
        dataset = replace(dataset, splits={**dataset.splits, "train": fewer})
        decisions.append(sentence)
        few = False
    train, held_out, sentence = _parts(dataset, options, stop_early, share)
    decisions.append(sentence)
    test = None if options.test is None else dataset.source(options.test)
    if test is not None and (options.test in ("train", ALL) or test is held_out):
        raise VitreousError(
            f"--test {options.test}: a result is tested on images that it neither learns from nor is validated on; choose "
            f"another split, or validate on training images with --held-out 0.1"
        )
    if options.sweep_share is not None:
        if not isinstance(train, Source):
            raise VitreousError("--sweep: a part of shards cannot be held out; choose a learning rate with --set lr=")
        train, held_out = split_stratified(train, derive_key("sweep", options.data_seed), options.sweep_share)
        decisions.append(f"a trial: validated on {len(held_out):,} of the run's training images")
    if OBJECTIVES[options.objective].classifies and not unlabelled:
        train = _labelled(train, decisions)
    bad: list[BadImage] = []
    train, held_out = _without_bad(train, options, bad), _without_bad(held_out, options, bad)
    if test is not None:
        test = _without_bad(test, options, bad)
        decisions.append(f"testing the result on {options.test}, once")
    if bad:
        decisions.append(f"left out {len(bad):,} images that cannot be read; bad_images.jsonl lists them")
    if few:
        train, sentence = reduce_training_images(train, options.subset, options.per_class, options.data_seed)
        decisions.append(sentence)
    validation = held_out if not isinstance(held_out, Source) or len(held_out) else None
    if validation is None:
        decisions.append("nothing to validate on: no class has two images, so none could be held out")
    count = len(train) if isinstance(train, Source) else train.count()
    if count == 0:
        raise VitreousError(f"{options.data}: there are no images to train on")
    size, channels, labels = _look(train)
    described: dict[str, Any] = {
        "name": options.data,
        "train": count,
        "held_out": len(held_out) if isinstance(held_out, Source) else held_out.count(),
        "held_out_split": held_out.split,
        "classes": len(dataset.classes),
        "fingerprint": fingerprint_of(train, held_out),
        "streams": min(STREAMS, len(train.shards)) if isinstance(train, Stream) else 0,
    }
    if test is not None:
        described["test"] = {"split": test.split, "fingerprint": fingerprint_of(test)}
    return RunImages(
        train, validation, test, dataset.classes, count, size, channels, labels, described, tuple(bad), tuple(decisions)
    )


def _labelled(train: Source | Stream, decisions: list[str]) -> Source | Stream:
    """Without the images that have no label, unless others have several: then none is an answer, too."""
    if not isinstance(train, Source):
        return train
    known = np.flatnonzero(train.targets() >= 0)
    if len(known) == len(train) or train.counts().sum() > len(known):
        return train
    if not len(known):
        raise VitreousError(f"{train.where}: none of the {len(train):,} training images has a label to learn")
    decisions.append(f"left out {len(train) - len(known):,} of {len(train):,} training images, which have no label")
    return train.subset(known, train.split)


def _parts(
    dataset: Dataset, options: TrainOptions, stop_early: bool, share: float
) -> tuple[Source | Stream, Source | Stream, str]:
    train = dataset.splits.get("train")
    choosing = stop_early and "validation" not in dataset.splits
    if isinstance(train, Source) and (options.held_out is not None or choosing):
        ours, theirs = split_stratified(train, options.data_seed, share)
        why = "--held-out" if options.held_out is not None else "the best evaluation is chosen, and a test set must not choose"
        return ours, theirs, f"validating on {len(theirs):,} training images held out, {share:.0%} of each class: {why}"
    if options.held_out is not None and not isinstance(train, Source) and train is not None:
        raise VitreousError(
            f"--held-out {options.held_out:g}: a part of shards cannot be held out; give them a validation split"
        )
    ours_, theirs_, sentence = choose_training_splits(dataset, options.data_seed, share)
    if theirs_.split == "test" and not choosing:
        sentence += "; checkpoint/best is chosen by it too, so its score is optimistic: quote the last one, or use --held-out"
    if choosing and theirs_.split == "test":
        sentence += ", which also chooses the best evaluation: shards cannot be divided, so give them a validation split"
    return ours_, theirs_, sentence


def _without_bad(source: Source | Stream, options: TrainOptions, bad: list[BadImage]) -> Source | Stream:
    """Files are looked at before the first step, so that a run does not stop after an hour. Shards are met as they come."""
    if not isinstance(source, Source) or not source.encoded:
        return source
    with progress_bar(f"reading the headers of the {source.split} images", len(source)) as advance:
        found = check_headers(source, default_workers() if options.workers is None else options.workers, advance)
    if found and options.bad_images == "stop":
        raise VitreousError(
            f"{len(found):,} images cannot be read, the first: {found[0]}; mend or remove them (`vitreous doctor` lists all), "
            f"or use --bad-images skip"
        )
    bad += found
    places = {error.place for error in found}
    good = [index for index in range(len(source)) if source.place(index) not in places]
    return source.subset(good, source.split) if found else source


def _look(source: Source | Stream) -> tuple[tuple[int, int] | None, int, float]:
    """Size and channels of a few images, no size where they differ, or could; and how many labels an image has."""
    sizes, channels, labels = set(), set(), []
    items = source.items()
    if isinstance(source, Source):
        items = (source[index] for index in range(0, len(source), max(1, len(source) // LOOKED_AT)))
    for item in itertools.islice(items, LOOKED_AT):
        labels.append(len(item.labels))
        try:
            image = item.content if isinstance(item.content, np.ndarray) else np.asarray(decode(item.content, place=item.place))
        except BadImage:
            continue
        sizes.add((image.shape[0], image.shape[1]))
        channels.add(1 if image.ndim == 2 else 3)
    same = len(sizes) == 1 and ((isinstance(source, Source) and not source.encoded) or max(next(iter(sizes))) <= SMALL)
    mean = source.counts().sum() / len(source) if isinstance(source, Source) else sum(labels) / max(1, len(labels))
    return next(iter(sizes)) if same else None, 1 if channels == {1} else 3, float(mean)


def fingerprint_of(*parts: Source | Stream) -> str:
    """Changes with the items, their labels or the classes."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Source):
            digest.update(part.fingerprint().encode())
        else:
            names = [shard.rsplit("/", 1)[-1] for shard in part.shards]
            digest.update(repr((part.classes, names, part.shard_lengths())).encode())
    return digest.hexdigest()[:32]
