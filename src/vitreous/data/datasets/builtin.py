"""Data that needs no download: `builtin:NAME`, or `builtin:NAME?size=64&count=100000&seed=0` for rendered sets.

`digits` are real: 1,797 handwritten digits that come with scikit-learn. All others are rendered by this package: made
for pre-training and for tests of what a model has learnt, and no substitute for photographs.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from vitreous.core.errors import VitreousError, unknown_name
from vitreous.data.source import SPLITS, Dataset
from vitreous.data.sources.arrays import Arrays
from vitreous.data.synthetic import letters
from vitreous.data.synthetic.generated import LARGEST
from vitreous.data.synthetic.random_draws import derive_keys, draw_uniform
from vitreous.data.synthetic.rendered import TASKS, Rendered

_DIGITS = {"train": 1_097, "validation": 200, "test": 500}


@dataclass(frozen=True)
class Entry:
    name: str
    kind: Literal["real", "rendered"]
    classes: int
    images: Mapping[str, int]  # in each split
    description: str


BUILTIN = (
    Entry("digits", "real", 10, _DIGITS, "handwritten digits from scikit-learn, 8 x 8, grey"),
    *(
        Entry(name, "rendered", len(task.classes), dict(zip(SPLITS, task.images, strict=True)), task.question)
        for name, task in TASKS.items()
    ),
    Entry("letters", "rendered", len(letters.LETTERS), letters.IMAGES, "which letter; printed, grey, light on dark"),
)


def open_builtin(name: str) -> Dataset:
    """The data set called `builtin:<name>`."""
    base, mark, text = name.partition("?")
    entries = {entry.name: entry for entry in BUILTIN}
    if base not in entries:
        raise unknown_name("built-in data set", base, entries)
    where = f"builtin:{name}"
    if base == "digits":
        if mark:
            raise VitreousError(f"{where}: the digits are what they are and take no options; write builtin:digits")
        return _open_digits()
    small = base == "letters"  # which are still letters where the smallest symbols of a scene would be a pixel or two
    options = _parse_options(where, text, smallest=8 if small else 16) if mark else {}
    size, seed = options.get("size", 32 if small else 64), options.get("seed", 0)
    images = {**entries[base].images, "train": options.get("count", entries[base].images["train"])}
    make = letters.Letters if small else partial(Rendered, task=base)
    splits = {split: make(where, split, count=count, size=size, seed=seed) for split, count in images.items()}
    note = f"{where}: rendered images, not photographs; {size} x {size} pixels, seed {seed}"
    return Dataset(where, splits["train"].classes, splits, notes=(note,))


def _parse_options(where: str, text: str, smallest: int) -> dict[str, int]:
    limits = {"size": (smallest, 2048), "count": (1, LARGEST), "seed": (0, LARGEST)}  # count: of images to train on
    options: dict[str, int] = {}
    for part in text.split("&"):
        key, equals, value = part.partition("=")
        if not equals:
            raise VitreousError(f"{where}: {part!r} is not an option; write builtin:NAME?size=64&count=100000&seed=0")
        if key not in limits:
            raise unknown_name(f"option of {where}:", key, limits)
        if key in options:
            raise VitreousError(f"{where}: {key} is given twice; leave one out")
        low, high = limits[key]
        if not re.fullmatch("[0-9]{1,19}", value) or not low <= int(value) <= high:
            raise VitreousError(f"{where}: {key}={value} must be a whole number from {low} to {high}")
        options[key] = int(value)
    return options


def _open_digits() -> Dataset:
    """A fixed split with the same shares of every digit in all parts. An item's id is its number in scikit-learn."""
    # The file that `sklearn.datasets.load_digits` reads; to import scikit-learn for it would take longer than a small run.
    package = importlib.util.find_spec("sklearn")
    folders = (package.submodule_search_locations if package is not None else None) or ()
    files = [path for folder in folders if (path := Path(folder, "datasets", "data", "digits.csv.gz")).is_file()]
    if not files:
        remedy = "pip install 'vitreous[demo]'"
        raise VitreousError(f"builtin:digits comes with scikit-learn, which is not installed: {remedy}")
    rows = np.loadtxt(files[0], delimiter=",")
    images = np.round(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    targets = rows[:, -1].astype(np.int64)
    draws = draw_uniform(derive_keys(0, 0, np.arange(len(targets), dtype=np.uint64)), 0)
    rank = np.empty(len(targets))
    for digit in range(10):  # each digit's images spread evenly over 0..1, in a drawn order: any cut then divides all alike
        own = np.flatnonzero(targets == digit)
        rank[own[np.argsort(draws[own], kind="stable")]] = (np.arange(len(own)) + 0.5) / len(own)
    order = np.argsort(rank, kind="stable")
    classes = tuple(str(digit) for digit in range(10))
    splits, start = {}, 0
    for split in ("test", "validation", "train"):
        own = np.sort(order[start : start + _DIGITS[split]])
        start += _DIGITS[split]
        splits[split] = Arrays("builtin:digits", split, classes, images[own], targets[own], [f"{i:04d}" for i in own])
    return Dataset("builtin:digits", classes, {split: splits[split] for split in SPLITS})
