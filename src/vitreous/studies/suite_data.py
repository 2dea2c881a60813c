"""The images of a task: a thousand to learn from, the same ones for every model and seed, and the test images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitreous.core.errors import VitreousError, first_few
from vitreous.data.open import open_data
from vitreous.data.source import ALL, Dataset, Source, Stream
from vitreous.data.sources.file_source import check_classes
from vitreous.data.splits import random_subset, split_stratified
from vitreous.studies.suite import Protocol, Task
from vitreous.training.data_split import fingerprint_of

HELD_OUT = 0.2  # for testing, where a set has one split only; and of the examples, for a sweep: VTAB's 200 of 1,000


@dataclass(frozen=True, eq=False)
class Parts:
    """What one task is trained on and evaluated on."""

    where: str
    classes: tuple[str, ...]
    train: Source | Stream
    test: Source | Stream
    notes: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        return fingerprint_of(self.train, self.test)

    def dataset(self) -> Dataset:
        """As a run takes it: one split to train on, one to evaluate on."""
        return Dataset(self.where, self.classes, {"train": self.train, self.test.split: self.test}, self.notes)


def final_parts(task: Task, protocol: Protocol, data_seed: int = 0) -> Parts:
    """All examples to learn from, the test images to evaluate on: the same ones for every model and every `--seed`."""
    dataset = open_data(task.data)
    _check_classes(task, dataset)
    if task.whole:
        train, test = dataset.source("train"), dataset.source("test")
        return Parts(task.data, dataset.classes, train, test, dataset.summary())
    pool, test, said = _pool_and_test(task, dataset, data_seed)
    train, drawn = _drawn(task, pool, protocol, data_seed)
    return Parts(task.data, dataset.classes, train, test, (*dataset.summary(), *said, *drawn))


def sweep_parts(task: Task, protocol: Protocol, data_seed: int = 0) -> Parts:
    """For choosing settings: the examples but a fifth, evaluated on that fifth. The test images take no part in it."""
    if task.sweep_data:
        dataset = open_data(task.sweep_data)
        _check_classes(task, dataset)
        return Parts(task.sweep_data, dataset.classes, dataset.source("train"), dataset.source("validation"), dataset.summary())
    final = final_parts(task, protocol, data_seed)
    if not isinstance(final.train, Source):
        raise VitreousError(f"task {task.name}: --sweep cannot hold a part of shards out; leave --sweep out, or give a folder")
    count = len(final.train)
    if count < 2:
        raise VitreousError(f"task {task.name}: {count} example cannot be divided for --sweep; give it more")
    kept = random_subset(final.train, count - max(1, round(HELD_OUT * count)), data_seed)
    ids = {kept.id(index) for index in range(len(kept))}
    rest = [index for index in range(count) if final.train.id(index) not in ids]
    return Parts(final.where, final.classes, kept, final.train.subset(rest, "validation"), final.notes)


def _check_classes(task: Task, dataset: Dataset) -> None:
    if len(dataset.classes) < 2:
        raise VitreousError(f"task {task.name}: {task.data} has {len(dataset.classes)} classes; there is nothing to tell apart")


def _pool_and_test(task: Task, dataset: Dataset, data_seed: int) -> tuple[Source, Source | Stream, tuple[str, ...]]:
    splits = dataset.splits
    only = next((name for name in ("train", ALL) if name in splits), None)
    if only is None:
        raise VitreousError(
            f"task {task.name}: {task.data} has {', '.join(splits)} and no train split; there is nothing to learn"
        )
    pool = splits[only]
    if not isinstance(pool, Source):
        raise VitreousError(
            f"task {task.name}: examples cannot be drawn from shards ({task.data}); give a folder, a manifest or a known set"
        )
    for name in ("test", "validation"):
        test = splits.get(name)
        if name in dataset.empty_splits() or (isinstance(test, Source) and not len(test)):
            raise VitreousError(f"task {task.name}: the {name} split of {task.data} is empty; there is nothing to evaluate on")
        if test is not None:
            check_classes(task.data, {part: own for part, own in dataset.own_classes.items() if part in (only, name)})
            said = () if name == "test" else (f"{task.data}: no test split, so evaluated on {name}",)
            return pool, test, said
    pool, held_out = split_stratified(pool, data_seed, HELD_OUT)
    if not len(pool) or not len(held_out):
        raise VitreousError(
            f"task {task.name}: {task.data} has too few images to hold any out for testing; give it a test split"
        )
    test = held_out.subset(np.arange(len(held_out)), "test")
    return (
        pool,
        test,
        (f"{task.data}: no test split, so evaluated on {len(test):,} images held out, {HELD_OUT:.0%} of each class",),
    )


def _drawn(task: Task, pool: Source, protocol: Protocol, data_seed: int) -> tuple[Source, tuple[str, ...]]:
    count = task.examples or protocol.examples
    labelled = pool.targets() >= 0
    if not labelled.all():
        pool = pool.subset(np.flatnonzero(labelled))
    if not len(pool):
        raise VitreousError(f"task {task.name}: {task.data} has no training images with labels")
    if count > len(pool):
        if task.examples is not None:
            raise VitreousError(f"task {task.name}: examples = {count:,}, but {task.data} has only {len(pool):,} to learn from")
        return pool, (f"{task.data}: learning from all {len(pool):,} images, fewer than the suite's {count:,}",)
    train = random_subset(pool, count, data_seed)
    missing = np.flatnonzero(train.counts() == 0)
    names = [train.classes[number] for number in missing]
    return train, (f"{task.data}: no example of {first_few(names, 4)} among the {count:,} that were drawn",) if names else ()
