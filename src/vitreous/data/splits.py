"""Choose the training and the validation split, and fixed subsets of the training images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.sampling import derive_key
from vitreous.data.source import ALL, Dataset, Source, Stream
from vitreous.data.sources.file_source import check_classes

SHARE = 0.1  # of each class, held out


def choose_training_splits(
    dataset: Dataset, seed: int = 0, share: float = SHARE
) -> tuple[Source | Stream, Source | Stream, str]:
    """The training split, the validation split, and a sentence that says what was decided.

    A data set's own validation split is used, or else its test split. Where there is only one part, `share` of each class
    is held out by the seed, and the same items are for the same seed wherever the files lie.
    """
    check_classes(dataset.where, {split: names for split, names in dataset.own_classes.items() if split in dataset.splits})
    splits = dataset.splits
    if "train" in splits:
        for name in ("validation", "test"):
            if name in splits:
                if dataset.own_classes.get("train") and not dataset.own_classes.get(name, dataset.classes):
                    raise VitreousError(
                        f"{dataset.where}: {name} has no labels to validate on; put its images into class folders"
                    )
                return splits["train"], splits[name], f"training on train, validating on {name}"
    only = "train" if "train" in splits else ALL if ALL in splits else None
    if only is None:
        raise VitreousError(f"{dataset.where}: nothing to train on; it has {', '.join(splits)} and no train split")
    source = splits[only]
    if isinstance(source, Stream):
        raise VitreousError(
            f"{dataset.where}: shards of one split only, which cannot be divided; name some of them val-*.tar, "
            f"or make shards with `vitreous shard` from data that has splits"
        )
    train, held_out = split_stratified(source, seed, share)
    how = f"{share:.0%} of each class, data seed {seed}"
    return train, held_out, f"no validation split: held out {len(held_out):,} of {len(source):,} images, {how}"


def split_stratified(source: Source, seed: int, share: float = SHARE) -> tuple[Source, Source]:
    """Two disjoint parts; the second has `share` of each class, at least one item of every class that has two.

    The choice goes by the seed and the items' ids alone: it is the same wherever the files lie, and an added file moves at
    most one other of its class.
    """
    if not 0 < share < 1:
        raise VitreousError(f"the share to hold out is {share}; it must lie between 0 and 1")
    held_out = _choose_per_class(
        source, _draw("split", seed, source), lambda size: max(1, round(share * size)) if size > 1 else 0
    )
    chosen = np.zeros(len(source), bool)
    chosen[held_out] = True
    return source.subset(np.flatnonzero(~chosen), "train"), source.subset(held_out, "validation")


def reduce_training_images(train: Source | Stream, subset: int | None, per_class: int | None, seed: int) -> tuple[Source, str]:
    """--subset and --per-class: a fixed part of the training images, and a sentence that tells which."""
    option = f"--subset {subset}" if subset is not None else f"--per-class {per_class}"
    if not isinstance(train, Source):
        raise VitreousError(f"{option}: images cannot be chosen from shards; give a folder, a manifest or a known set")
    if subset is not None:
        if subset > len(train):
            raise VitreousError(f"{option}: there are only {len(train):,} training images")
        return random_subset(train, subset, seed), f"training on a random {subset:,} of {len(train):,} images, data seed {seed}"
    assert per_class is not None
    chosen = subset_per_class(train, per_class, seed)
    return chosen, f"training on {len(chosen):,} images, at most {per_class:,} of each class, data seed {seed}"


def random_subset(source: Source, count: int, seed: int) -> Source:
    """`count` items chosen by the seed and their ids alone. A smaller subset of the same seed lies inside a larger one."""
    return source.subset(np.sort(np.argsort(_draw("subset", seed, source), kind="stable")[:count]), source.split)


def subset_per_class(source: Source, count: int, seed: int) -> Source:
    """At most `count` items of each class, chosen in the same way."""
    chosen = _choose_per_class(source, _draw("subset", seed, source), lambda size: count)
    return source.subset(chosen[source.targets()[chosen] >= 0], source.split)


def _draw(what: str, seed: int, source: Source) -> NDArray[np.uint64]:
    """A random number for each item, by its id."""
    return np.array([derive_key(what, seed, source.id(index)) for index in range(len(source))], np.uint64)


def _choose_per_class(source: Source, draws: NDArray[np.uint64], count: Callable[[int], int]) -> NDArray[np.int64]:
    """The items with the smallest draws of each class, `count` of its size, in their order."""
    targets = source.targets()
    chosen = [np.zeros(0, np.int64)]
    for label in np.unique(targets):
        items = np.flatnonzero(targets == label)
        chosen.append(items[np.argsort(draws[items], kind="stable")[: count(len(items))]])
    return np.sort(np.concatenate(chosen))
