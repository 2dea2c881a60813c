"""The 19 tasks of VTAB-1k: what each is and how it may be augmented.

The splits and label rules are those of the benchmark's own code; the crop and flip switches say which augmentation leaves
the label true (a mirrored sprite has another orientation, a cropped scene has other objects).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from vitreous.core.errors import unknown_name

Group: TypeAlias = Literal["natural", "specialized", "structured"]

GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")


TRAIN_IMAGES, VALIDATION_IMAGES = 800, 200


@dataclass(frozen=True)
class VtabTask:
    name: str
    title: str  # for tables and charts
    folder: str  # in the community's `vtab-1k` layout
    group: Group
    classes: int
    test_images: int  # of the published test split; a score on another number is not comparable
    crop: bool  # whether a random crop leaves the label true
    flip: bool  # whether mirroring does
    class_names: tuple[str, ...] = ()  # where a rule gives the labels; the others are known by number
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """One name for each class: the rule's, or its number."""
        return self.class_names or tuple(map(str, range(self.classes)))


def _name_intervals(edges: Sequence[float], what: str = "") -> tuple[str, ...]:
    return tuple(f"{what}{low:g} to {high:g}" for low, high in itertools.pairwise(edges))


CLEVR_FEWEST = 3  # objects in a scene; ten at most
CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)  # metres; beyond the last stands for "no vehicle"
DSPRITES_BINS = 16
DSPRITES_X, DSPRITES_ORIENTATIONS = 32, 40  # values that the original has

_BINS_X = tuple(f"x {2 * low}-{2 * low + 1} of 32" for low in range(DSPRITES_BINS))
_EDGES = [-(-DSPRITES_ORIENTATIONS * low // DSPRITES_BINS) for low in range(DSPRITES_BINS + 1)]  # two or three to a bin
_BINS_ORIENTATION = tuple(f"orientation {low}-{end - 1} of 40" for low, end in itertools.pairwise(_EDGES))

TASKS: tuple[VtabTask, ...] = (
    VtabTask("caltech101", "Caltech101", "caltech101", "natural", 102, 6_084, True, True, (), ("caltech",)),
    VtabTask("cifar100", "CIFAR-100", "cifar", "natural", 100, 10_000, True, True),
    VtabTask("dtd", "DTD", "dtd", "natural", 47, 1_880, True, True),
    VtabTask(
        "flowers102",
        "Flowers102",
        "oxford_flowers102",
        "natural",
        102,
        6_149,
        True,
        True,
        (),
        ("flowers",),
    ),
    VtabTask("pets", "Pets", "oxford_iiit_pet", "natural", 37, 3_669, True, True),
    VtabTask("sun397", "Sun397", "sun397", "natural", 397, 21_750, True, True),
    VtabTask("svhn", "SVHN", "svhn", "natural", 10, 26_032, True, True, (), ("svhn_cropped",)),
    VtabTask("camelyon", "Camelyon", "patch_camelyon", "specialized", 2, 32_768, True, True, (), ("pcam",)),
    VtabTask("eurosat", "EuroSAT", "eurosat", "specialized", 10, 5_400, True, True),
    VtabTask("resisc45", "Resisc45", "resisc45", "specialized", 45, 6_300, True, True),
    VtabTask("retinopathy", "Retinopathy", "diabetic_retinopathy", "specialized", 5, 42_670, True, True),
    VtabTask(
        "clevr-count",
        "Clevr-Count",
        "clevr_count",
        "structured",
        8,
        15_000,
        False,
        True,
        tuple(f"{count} objects" for count in range(CLEVR_FEWEST, CLEVR_FEWEST + 8)),
    ),
    VtabTask(
        "clevr-distance",
        "Clevr-Dist",
        "clevr_dist",
        "structured",
        6,
        15_000,
        False,
        True,
        _name_intervals(CLEVR_DISTANCES, "closest at "),
    ),
    VtabTask("dmlab", "DMLab", "dmlab", "structured", 6, 22_735, False, True),
    VtabTask(
        "dsprites-location",
        "dSpr-Loc",
        "dsprites_loc",
        "structured",
        DSPRITES_BINS,
        73_728,
        False,
        False,
        _BINS_X,
        ("dsprites-x-position",),
    ),
    VtabTask(
        "dsprites-orientation",
        "dSpr-Ori",
        "dsprites_ori",
        "structured",
        DSPRITES_BINS,
        73_728,
        True,
        False,
        _BINS_ORIENTATION,
    ),
    VtabTask(
        "kitti-distance",
        "KITTI-Dist",
        "kitti",
        "structured",
        4,
        711,
        False,
        True,
        ("vehicle within 8 m", "vehicle at 8 to 20 m", "vehicle beyond 20 m", "no vehicle"),
        ("kitti_dist", "kitti-closest-vehicle-distance"),
    ),
    VtabTask(
        "smallnorb-azimuth",
        "sNORB-Azim",
        "smallnorb_azi",
        "structured",
        18,
        12_150,
        True,
        False,
        tuple(f"azimuth {20 * step} degrees" for step in range(18)),
    ),
    VtabTask(
        "smallnorb-elevation",
        "sNORB-Elev",
        "smallnorb_ele",
        "structured",
        9,
        12_150,
        True,
        True,
        tuple(f"elevation {30 + 5 * step} degrees" for step in range(9)),
    ),
)


def find_task(name: str) -> VtabTask:
    """By its name, the community's folder, or what the table calls it; `_` and `-` are the same."""
    folded = _fold_name(name)
    for task in TASKS:
        if folded in map(_fold_name, (task.name, task.title, task.folder, *task.aliases)):
            return task
    raise unknown_name("VTAB task", name, [task.name for task in TASKS])


def _fold_name(name: str) -> str:
    return name.strip().casefold().replace("_", "-")
