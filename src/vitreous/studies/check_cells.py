"""Whether the data has what a study's grid needs: checked before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence

from vitreous.core.errors import VitreousError
from vitreous.data.source import Dataset, Source
from vitreous.studies.measures import SHOTS
from vitreous.studies.study import Cell
from vitreous.studies.study_data import open_once


def check_data(data: str) -> None:
    """Images with labels of two classes or more, and some to test on."""
    dataset = open_once(data)
    if "train" not in dataset.splits or not {"test", "validation"} & set(dataset.splits):
        raise VitreousError(f"{data}: a study needs a train and a test split; make folders train/ and test/ with class folders")
    if any(not isinstance(split, Source) for split in dataset.splits.values()):
        raise VitreousError(f"{data}: a study chooses images, which shards do not allow; give a folder or a known set")
    if len(dataset.classes) < 2:
        raise VitreousError(f"{data}: has {len(dataset.classes)} classes; a study compares accuracies, so it needs two or more")


def check_cells(cells: Sequence[Cell]) -> None:
    """As many training images of each class, and in all, as the runs and few-shot evaluations ask for."""
    per_class: dict[str, int] = {}
    in_all: dict[str, int] = {}
    for cell in cells:
        for stage in cell.stages:
            data = str(stage.options["data"])
            per_class[data] = max(per_class.get(data, 0), stage.options.get("per_class", 0))
            # Twenty: enough to hold some out for the choice of a learning rate.
            in_all[data] = max(in_all.get(data, 20), stage.options.get("subset", 0))
        if cell.measure == "fewshot":
            per_class[cell.fewshot_data] = max(per_class.get(cell.fewshot_data, 0), SHOTS)
    for data, needed in per_class.items():
        _check_counts(data, open_once(data), needed, in_all.get(data, 0))


def _check_counts(data: str, dataset: Dataset, per_class: int, in_all: int) -> None:
    train = dataset.splits["train"]
    assert isinstance(train, Source)
    counts = train.counts()
    fewest = int(counts.argmin())
    if counts[fewest] < per_class:
        raise VitreousError(
            f"{data}: class {dataset.classes[fewest]} has {counts[fewest]:,} training images; this study needs {per_class:,} "
            f"of each class: add images, or choose other data"
        )
    if len(train) < in_all:
        raise VitreousError(f"{data}: has {len(train):,} training images; this study needs {in_all:,}")
