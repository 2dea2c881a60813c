"""The 19 tasks of VTAB-1k: what each is, how it may be augmented, and what the paper reached on it.

The splits and label rules are those of the benchmark's own code; the crop and flip switches say which augmentation leaves
the label true (a mirrored sprite has another orientation, a cropped scene has other objects). Figures: the paper's Table 9.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from vitreous.core.errors import unknown_name

Group: TypeAlias = Literal["natural", "specialized", "structured"]

GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")


class Table9(NamedTuple):
    """Accuracy in percent on the test split, mean of three runs."""

    h14_jft: float
    l16_jft: float
    l16_i21k: float


PAPER_TITLES = ("ViT-H/14 (JFT)", "ViT-L/16 (JFT)", "ViT-L/16 (ImageNet-21k)")
PAPER_MEAN = Table9(77.6, 76.3, 72.7)  # over the 19 tasks, as the table's last column prints it

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
    paper: Table9
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
    VtabTask(
        "caltech101", "Caltech101", "caltech101", "natural", 102, 6_084, True, True, Table9(95.3, 95.4, 90.8), (), ("caltech",)
    ),
    VtabTask("cifar100", "CIFAR-100", "cifar", "natural", 100, 10_000, True, True, Table9(85.5, 81.9, 84.1)),
    VtabTask("dtd", "DTD", "dtd", "natural", 47, 1_880, True, True, Table9(75.2, 74.3, 74.1)),
    VtabTask(
        "flowers102",
        "Flowers102",
        "oxford_flowers102",
        "natural",
        102,
        6_149,
        True,
        True,
        Table9(99.7, 99.7, 99.3),
        (),
        ("flowers",),
    ),
    VtabTask("pets", "Pets", "oxford_iiit_pet", "natural", 37, 3_669, True, True, Table9(97.2, 96.7, 92.7)),
    VtabTask("sun397", "Sun397", "sun397", "natural", 397, 21_750, True, True, Table9(65.0, 63.5, 61.0)),
    VtabTask("svhn", "SVHN", "svhn", "natural", 10, 26_032, True, True, Table9(88.9, 87.4, 80.9), (), ("svhn_cropped",)),
    VtabTask(
        "camelyon", "Camelyon", "patch_camelyon", "specialized", 2, 32_768, True, True, Table9(83.3, 83.6, 82.5), (), ("pcam",)
    ),
    VtabTask("eurosat", "EuroSAT", "eurosat", "specialized", 10, 5_400, True, True, Table9(96.7, 96.5, 95.6)),
    VtabTask("resisc45", "Resisc45", "resisc45", "specialized", 45, 6_300, True, True, Table9(91.4, 89.7, 85.2)),
    VtabTask(
        "retinopathy", "Retinopathy", "diabetic_retinopathy", "specialized", 5, 42_670, True, True, Table9(76.6, 77.1, 75.3)
    ),
    VtabTask(
        "clevr-count",
        "Clevr-Count",
        "clevr_count",
        "structured",
        8,
        15_000,
        False,
        True,
        Table9(91.7, 86.4, 70.3),
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
        Table9(63.8, 63.1, 56.1),
        _name_intervals(CLEVR_DISTANCES, "closest at "),
    ),
    VtabTask("dmlab", "DMLab", "dmlab", "structured", 6, 22_735, False, True, Table9(53.1, 49.7, 41.9)),
    VtabTask(
        "dsprites-location",
        "dSpr-Loc",
        "dsprites_loc",
        "structured",
        DSPRITES_BINS,
        73_728,
        False,
        False,
        Table9(79.4, 74.5, 74.7),
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
        Table9(63.3, 60.5, 64.9),
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
        Table9(84.5, 82.2, 79.9),
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
        Table9(33.2, 36.2, 30.5),
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
        Table9(51.2, 51.1, 41.7),
        tuple(f"elevation {30 + 5 * step} degrees" for step in range(9)),
    ),
)


def find_task(name: str) -> VtabTask:
    """By its name, the community's folder, or what the table calls it; `_` and `-` are the same."""
    wanted = _fold_name(name)
    for task in TASKS:
        if wanted in map(_fold_name, (task.name, task.title, task.folder, *task.aliases)):
            return task
    raise unknown_name("VTAB task", name, [task.name for task in TASKS])


def _fold_name(name: str) -> str:
    return name.strip().casefold().replace("_", "-")
