"""The order of training as a pure function of seed and step: example n of a run is item `permute(n mod N)` of epoch `n div N`.

Nothing is shuffled in memory and nothing is remembered, so any step can be computed by itself: resuming needs the step and
nothing else, any number of processes agrees, and a billion items take no more memory than ten.

An epoch's permutation is a Feistel network over the item numbers: rounds that mix one half of the bits into the other
are a permutation of 0 .. 2^b - 1 whatever the mixing; numbers that fall outside 0 .. N - 1 are put through again.
"""

from __future__ import annotations

import hashlib
import random
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError

Sampling = Literal["uniform", "balanced"]

_ROUNDS = 8  # four, which cryptographers ask for, leave a bias that a test sees where there are only a dozen items


def derive_key(*words: object) -> int:
    """64 bits that depend on the words alone: not on the machine, the Python version or the hash seed."""
    text = "\0".join(str(word) for word in words)
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest(), "little")


def item_generator(seed: int, epoch: int, item: str) -> random.Random:
    """The random numbers of one item in one epoch. Python promises the same numbers from `random()` in every version."""
    return random.Random(derive_key("augment", seed, epoch, item))


def permute(numbers: NDArray[np.int64], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where an epoch's permutation of 0 .. count-1 takes these numbers."""
    half = max(1, (int(count - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    keys = [np.uint64(derive_key("order", seed, epoch, turn)) for turn in range(_ROUNDS)]
    result = numbers.astype(np.uint64)
    outside = np.ones(len(result), bool)
    while outside.any():  # fewer than four times as many numbers as items: this ends after a few turns
        left, right = result[outside] >> np.uint64(half), result[outside] & mask
        for word in keys:
            left, right = right, left ^ (mix_bits(right ^ word) & mask)
        result[outside] = (left << np.uint64(half)) | right
        outside = result >= np.uint64(count)
    return result.astype(np.int64)


def mix_bits(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One to one, and every bit of the result depends on every bit of x: SplitMix64's finaliser (Steele and others, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def example_items(numbers: NDArray[np.int64], count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Item numbers and epochs of these examples of a run over `count` items.

    Epochs follow one another without a gap: a batch may hold the end of one and the beginning of the next, and in every
    epoch every item comes once.
    """
    if count < 1:
        raise VitreousError("there are no items to train on")
    epochs = numbers // count
    items = np.empty_like(numbers)
    for epoch in np.unique(epochs):
        own = epochs == epoch
        items[own] = permute(numbers[own] % count, count, seed, int(epoch))
    return items, epochs


def balanced_items(
    numbers: NDArray[np.int64], targets: NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Item numbers of these examples of a run in which every class comes equally often, and how often each item came before.

    Examples come in rounds of one for each class, in an order of its own; `targets` has the class of every item. A class goes
    through its items in permutations, one after another, so a small class begins its next one sooner. This too is a pure
    function of seed and number.
    """
    classes = np.unique(targets[targets >= 0])
    if not len(classes):
        raise VitreousError("sampling=balanced needs labelled images, and there are none")
    rounds, items, passes = numbers // len(classes), np.empty_like(numbers), np.empty_like(numbers)
    turns = np.empty_like(numbers)
    for number in np.unique(rounds):
        own = rounds == number
        turns[own] = permute(numbers[own] % len(classes), len(classes), derive_key("classes", seed), int(number))
    for turn in np.unique(turns):
        of_class, own = np.flatnonzero(targets == classes[turn]), turns == turn
        items[own], passes[own] = example_items(rounds[own], len(of_class), derive_key("class", seed, turn))
        items[own] = of_class[items[own]]
    return items, passes
