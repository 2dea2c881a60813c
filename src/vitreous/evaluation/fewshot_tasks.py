"""Load few-shot tasks: features of the labelled training and test images of a data set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vitreous.classifier import Classifier
from vitreous.core.device import PrecisionName as Precision
from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError, first_few
from vitreous.core.files import user_path
from vitreous.data.open import open_data
from vitreous.data.source import Policy, Source, Stream
from vitreous.data.splits import choose_training_splits, reduce_training_images
from vitreous.data.transforms.ops import Resize, ResizeSmall
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.fewshot import FewshotTask, Shots, check_shots, smallest_class
from vitreous.inference.features import Features, compute_features

SHOTS: tuple[Shots, ...] = (1, 5, 10, 25, "all")  # the paper's, and everything there is
HELD_OUT = 0.3  # of each class, where the data has one split only: few-shot fits need few images, and a fair test many


def split_names(text: str) -> tuple[str, ...]:
    """DATA,DATA,...: a comma divides, unless it is within braces or in the name of something that is there."""
    whole = user_path(text).exists()
    names = [text] if whole else [name.strip() for name in re.split(r",(?![^{}]*\})", text)]
    if not all(names):
        raise VitreousError(f"{text!r}: an empty name between commas; name data sets as one,two")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise VitreousError(f"{first_few(twice)} is named twice; name every data set once")
    return tuple(names)


def paper_preprocess(clf: Classifier) -> Preprocess:
    """`resize(256)|central_crop(224)` (PAPER 4.4), in proportion to the checkpoint's evaluation size.

    The pixel values and the filter are the checkpoint's own, since it has learnt from those.
    """
    height, width = clf.evaluation_size
    filters = [op.filter for op in clf.preprocess.ops if isinstance(op, (Resize, ResizeSmall))]
    tall, wide = round(height * 256 / 224), round(width * 256 / 224)
    ops = [f"resize({tall},{wide},{filters[0] if filters else 'bilinear'})", f"central_crop({height},{width})"]
    return Preprocess("|".join([*ops, *map(str, clf.preprocess.scales)]), clf.config.channels)


def choose_preprocess(clf: Classifier, text: str | None) -> Preprocess:
    """The checkpoint's own; or what was asked for, which has to fit its size: a string, or `paper`."""
    if text == "paper":
        return paper_preprocess(clf)
    asked = Preprocess(text, clf.config.channels) if text is not None else clf.preprocess
    text = str(asked)
    if asked.random:
        raise VitreousError(f"--preprocess {text}: is random; frozen features need a fixed string")
    height, width = clf.evaluation_size
    if asked.size != (height, width):
        size = "different sizes" if asked.size is None else f"{asked.size[0]} x {asked.size[1]} pixels"
        raise VitreousError(
            f"--preprocess {text}: gives images of {size}, the model takes {height} x {width}; see --image-size"
        )
    return asked


class TaskImages(NamedTuple):
    """The images of a few-shot task, before any model has seen them."""

    name: str
    train: Source | Stream  # to draw from
    test: Source | Stream  # to evaluate on
    notes: tuple[str, ...]  # what was decided


def open_task(
    name: str,
    *,
    shots: Sequence[Shots] = (),
    data_seed: int = 0,
    subset: int | None = None,
    per_class: int | None = None,
    bad_images: Policy = "stop",
) -> TaskImages:
    """`data_seed` is that of images held out, where the data has no split for it.

    The test split is evaluated where there is one, as for `evaluate` and `vtab`: nothing is chosen by it. `shots` that the data
    has too few images for are refused before the model has run, where the labels are known.
    """
    dataset = open_data(name, bad_shards=bad_images)
    if len(dataset.classes) < 2:
        found = f"one class only ({dataset.classes[0]})" if dataset.classes else "no labels"
        raise VitreousError(f"{name}: has {found}; there is nothing to tell apart")
    empty = dataset.empty_splits()
    if empty and not {"validation", "test"} & set(dataset.splits):
        raise VitreousError(f"{name}: its {empty[-1]} split has no images; add some, or remove its folder")
    if "test" in dataset.splits:
        dataset = replace(dataset, splits={split: part for split, part in dataset.splits.items() if split != "validation"})
    notes = [*dataset.summary()]

    def reduce(part: Source | Stream) -> Source | Stream:
        """As in training: what is held out of the training images belongs to the budget too."""
        fewer, chosen = reduce_training_images(part, subset, per_class, data_seed)
        notes.append(f"{name}: {chosen.replace('training on', 'drawing from')}")
        return fewer

    few, has_train = subset is not None or per_class is not None, "train" in dataset.splits
    if few and has_train:
        dataset = replace(dataset, splits={**dataset.splits, "train": reduce(dataset.splits["train"])})
    train, test, sentence = choose_training_splits(dataset, data_seed, HELD_OUT)
    notes.append(f"{name}: {sentence.replace('training on', 'drawing from')}")
    if few and not has_train:
        train = reduce(train)
    for part in (train, test):
        if isinstance(part, Source) and not len(part):
            raise VitreousError(f"{name}: its {part.split} split is empty; there is nothing to {_purpose(part is train)}")
    if shots and isinstance(train, Source) and isinstance(test, Source) and (train.targets() >= 0).any():
        check_shots(shots, name, smallest_class(train.targets(), test.targets(), dataset.classes))
    return TaskImages(name, train, test, tuple(notes))


def load_task(
    clf: Classifier,
    images: TaskImages,
    preprocess: Preprocess,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    precision: Precision = "float32",
    world: World | None = None,
    bad_images: Policy = "stop",
    cache: bool = True,
) -> tuple[FewshotTask, tuple[str, ...]]:
    """The task with its features, and what was decided and left out."""
    name, train, test, said = images
    notes, parts = [*said], []
    for part in (train, test):
        found_ = compute_features(
            clf,
            part,
            preprocess=preprocess,
            batch_size=batch_size,
            workers=workers,
            precision=precision,
            device=world.device if world is not None else "cpu",
            world=world,
            bad_images=bad_images,
            cache=cache,
        )
        parts.append(keep_labelled(name, part, found_, notes, _purpose(part is train)))
    return FewshotTask(name, *parts), tuple(notes)


def _purpose(train: bool) -> str:
    return "fit to" if train else "evaluate on"


def keep_labelled(name: str, part: Source | Stream, found: Features, notes: list[str], purpose: str) -> Features:
    """Those that have a label; what was left out is added to `notes`."""
    notes += found.notes
    rows = np.array([row for row, own in enumerate(found.labels) if own], np.int64)
    if found.bad:
        place, why = found.bad[0]
        if not len(found):
            raise VitreousError(f"{name}: none of its {len(found.bad):,} {part.split} images can be read ({place}: {why})")
        rest = f" and {len(found.bad) - 1:,} more" if len(found.bad) > 1 else ""
        notes.append(f"{name} {part.split}: left out {place} ({why}){rest}, which cannot be read; see `vitreous doctor`")
    if not len(rows):
        raise VitreousError(f"{name}: its {part.split} split has no image with a label to {purpose}; see `vitreous doctor`")
    if len(rows) < len(found):
        notes.append(f"{name} {part.split}: {len(found) - len(rows):,} images have no label and take no part")
        return found.some(rows)
    return found


def possible_shots(tasks: Sequence[FewshotTask]) -> tuple[tuple[Shots, ...], tuple[str, ...]]:
    """The default numbers of shots, as far as every class has so many images; and what had to be left out."""
    smallest, task = min(((task.fewest(), task.name) for task in tasks), key=lambda entry: entry[0][0])
    kept = tuple(shots for shots in SHOTS if shots == "all" or shots <= smallest[0])
    left = [str(shots) for shots in SHOTS if shots not in kept]
    said = f"not {', '.join(left)} shots: class {smallest[1]!r} of {task} has {smallest[0]:,} training images"
    return kept, (said,) if left else ()
