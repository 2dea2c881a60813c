"""`vitreous inspect` as a whole: which images, what is seen inside the model, and the folder that shows it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from vitreous.classifier import load
from vitreous.core.device import choose_device
from vitreous.core.errors import VitreousError, check_at_least, unknown_name
from vitreous.core.table import table
from vitreous.inference.engines.exported_file import refuse_exported
from vitreous.inspection.data_map import Projection
from vitreous.inspection.images import (
    data_images,
    data_split,
    drawn_scenes,
    fixed_size,
    folders_of,
    map_data,
    named_images,
)
from vitreous.inspection.inspect_model import inspect_model
from vitreous.inspection.inspection_dir import check_inspection_dir, write_inspection_dir
from vitreous.models.config import Size

CLOSELY = 12  # images that are looked at closely, of those that are named
_OF_DATA, _OF_SCENES = 6, 3  # and of others


@dataclass(frozen=True)
class Inspected:
    """What was seen inside a checkpoint."""

    out: str
    numbers: Mapping[str, Any]  # as in inspect.json
    notes: tuple[str, ...] = ()
    exit_code: int = 0

    def text(self) -> str:
        survey = self.numbers["survey"]
        lines = []
        if survey is not None:
            columns = ("layer", "distance", "nearest head", "farthest head", "entropy")
            images = f"{survey['images']:,} image{'' if survey['images'] == 1 else 's'}"
            rows = [_row(*row) for row in enumerate(zip(survey["distance"], survey["entropy"], strict=True))]
            lines = [
                f"attention over {images} of {self.numbers['images_of']}; distances in pixels",
                table(columns, rows),
                f"{100 * survey['outlier_share']:.2g} % of patches are outliers in token norm",
            ]
        looks = len(self.numbers["looks"])
        shown = f"{looks or 'no'} image{'' if looks == 1 else 's'}"
        lines.append(f"{Path(self.out) / 'report.html'} shows all figures and {shown}; inspect.json has every number")
        return "\n".join(lines)

    def records(self) -> Iterator[dict[str, Any]]:
        survey = self.numbers["survey"] or {"images": 0, "distance": (), "entropy": (), "outlier_share": None}
        ends = (("first", 0), ("last", -1))
        yield {
            "out": self.out,
            **{key: self.numbers[key] for key in ("checkpoint", "model", "preprocess", "images_of", "layers", "heads")},
            "images": survey["images"],
            "looks": [look["image"] for look in self.numbers["looks"]],
            **{key: {name: _spread(survey[key][at]) for name, at in ends if survey[key]} for key in ("distance", "entropy")},
            "outlier_share": survey["outlier_share"],
            **{key: self.numbers[key] for key in ("data_map", "files", "seconds")},
        }


def _row(layer: int, values: tuple[Sequence[float], Sequence[float]]) -> tuple[int, float, float, float, float]:
    distance, entropy = map(_spread, values)
    return layer, distance["mean"], distance["min"], distance["max"], entropy["mean"]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """What is looked at; checked when it is made, before anything is loaded."""

    checkpoint: str
    images: Sequence[str]
    out: Path
    data: str | None
    count: int
    projection: Projection
    image_size: Size | None
    batch_size: int | None
    device: str
    seed: int

    def __post_init__(self) -> None:
        check_at_least(1, count=self.count, batch_size=self.batch_size)
        if self.projection not in get_args(Projection):
            raise unknown_name("--projection", self.projection, get_args(Projection))
        if self.data is None and self.projection in ("pca", "tsne"):
            raise VitreousError(
                f"--projection {self.projection}: draws a map of the data, so give --data DATA too, or leave it out"
            )
        check_inspection_dir(self.out)
        for folder in folders_of(self.images, self.data):
            check_inspection_dir(self.out, folder)


def run_inspection(options: InspectOptions) -> Inspected:
    began = time.monotonic()
    device, count, seed, batch_size = choose_device(options.device), options.count, options.seed, options.batch_size
    source, notes = data_split(options.data) if options.data is not None else (None, [])
    refuse_exported(options.checkpoint, "inspect")
    clf = load(options.checkpoint, image_size=options.image_size)
    clf.model.to(device)
    preprocess, size_notes = fixed_size(clf)
    named = None
    if options.images:
        named = named_images(options.images, preprocess, CLOSELY if source else count, CLOSELY, seed)
    if source is not None:
        many, closely = data_images(source, preprocess, count, batch_size or 16, seed), _OF_DATA
    elif named is not None:
        many, closely = named, CLOSELY
    else:
        many, closely = drawn_scenes(clf, preprocess, count, batch_size or 16, seed), _OF_SCENES
    with contextlib.closing(many.images):
        # Read at once: a misspelt name ends it here and not after the long work.
        apart = list(named.images) if named is not None and named is not many else []
        data_map = None
        if source is not None and options.projection != "none":
            data_map, map_notes = map_data(clf, source, preprocess, options.projection, batch_size, device, seed)
            notes += map_notes
        found = inspect_model(clf, many.images, closely=closely, apart=apart, batch_size=batch_size, count=many.count)
        found = replace(found, data_map=data_map)
    readable = found.survey.images if found.survey is not None else many.count - len(many.bad)
    if many is named and found.looks and readable > len(found.looks):
        notes.append(f"{len(found.looks)} of {readable:,} images are looked at closely")
    reading_notes = [note for reading in (named, many) if reading is not None for note in reading.said()]
    notes = [*clf.notes, clf.preprocessing_note(preprocess), *size_notes, *notes, *reading_notes, *found.notes]
    about = {
        "checkpoint": options.checkpoint,
        "images_of": many.where,
        "data": options.data,
        "count": count,
        "projection": options.projection,
        "seed": seed,
        "device": device,
        "notes": list(dict.fromkeys(notes)),
    }
    numbers = write_inspection_dir(options.out, found, about, began)
    return Inspected(str(options.out), numbers, tuple(numbers["notes"]))
