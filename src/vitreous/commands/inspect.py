from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from vitreous.commands.types import Checkpoint, ImageSize
from vitreous.core.files import user_path
from vitreous.core.table import table

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
            lines.append(f"attention over {images} of {self.numbers['images_of']}; distances in pixels")
            lines.append(
                table(columns, [_row(*row) for row in enumerate(zip(survey["distance"], survey["entropy"], strict=True))])
            )
            lines.append(f"{100 * survey['outlier_share']:.2g} % of patches are outliers in length")
        looks = len(self.numbers["looks"])
        pictures = f"{looks or 'no'} picture{'' if looks == 1 else 's'}"
        lines.append(f"{Path(self.out) / 'report.html'} shows all figures and {pictures}; inspect.json has every number")
        return "\n".join(lines)

    def records(self) -> Iterator[dict[str, Any]]:
        survey = self.numbers["survey"]
        found: dict[str, Any] = {"out": self.out}
        found |= {key: self.numbers[key] for key in ("checkpoint", "model", "preprocess", "images_of", "layers", "heads")}
        found["images"] = 0 if survey is None else survey["images"]
        found["looks"] = [look["image"] for look in self.numbers["looks"]]
        for key in ("distance", "entropy"):
            rows = [] if survey is None else survey[key]
            found[key] = {name: _spread(rows[at]) for name, at in (("first", 0), ("last", -1)) if rows}
        found["outlier_share"] = None if survey is None else survey["outlier_share"]
        found["data_map"] = self.numbers["data_map"]
        found |= {key: self.numbers[key] for key in ("files", "seconds")}
        yield found


def _row(layer: int, values: tuple[Sequence[float], Sequence[float]]) -> tuple[int, float, float, float, float]:
    distance, entropy = map(_spread, values)
    return layer, distance["mean"], distance["min"], distance["max"], entropy["mean"]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}


def inspect(
    checkpoint: Checkpoint,
    images: Annotated[Sequence[str], tyro.conf.Positional, tyro.conf.arg(metavar="[IMAGE...]")] = (),
    *,
    out: str,
    data: str | None = None,
    count: Annotated[int, tyro.conf.arg(aliases=["--images"])] = 128,
    projection: Literal["auto", "pca", "tsne", "none"] = "auto",
    image_size: ImageSize = None,
    batch_size: int | None = None,
    device: str = "auto",
    seed: int = 0,
) -> Inspected:
    """Look inside a checkpoint: where it looks, how far, what its filters and positions are; the paper's figures and more.

    Writes a page (report.html) that says how to read each figure, what a healthy model shows and what this one shows, every
    figure as PNG and SVG, and the numbers as CSV, JSON and NumPy arrays.

    Example: vitreous inspect runs/pets/checkpoint cat.jpg --data pets:test --out inside

    Args:
        checkpoint: a run, a file, a folder, or a name from `vitreous list weights`.
        images: files, folders, patterns in quotes, or - for names on standard input; a dozen are looked at closely.
        out: the folder to write to.
        data: labelled images for the means over many and for a map of the data; the test split, if there is one.
        count: over how many images means are taken: of --data, else of IMAGE, else of drawn scenes.
        projection: how the map of --data is drawn; auto takes t-SNE where scikit-learn is installed.
        image_size: run the model at another size than the checkpoint's.
        batch_size: how many images to run at once; as many as suit the memory if not given.
        device: cpu, cuda, mps; the best there is if not given.
        seed: draws which images are taken where there are more of them.
    """
    began = time.monotonic()
    from vitreous.classifier import load
    from vitreous.commands.inspect_images import (
        cloud_of,
        data_images,
        data_split,
        drawn_scenes,
        fixed_size,
        folders_of,
        named_images,
    )
    from vitreous.core.device import choose_device
    from vitreous.core.errors import VitreousError, unknown_name
    from vitreous.inspection.inspect_model import Projection, inspect_model
    from vitreous.inspection.inspection_dir import check_inspection_dir, write_inspection_dir

    words = [os.fspath(image) for image in ([images] if isinstance(images, (str, os.PathLike)) else images)]
    for name, value in (("count", count), ("batch-size", batch_size)):
        if value is not None and value < 1:
            raise VitreousError(f"--{name} {value}: must be at least 1")
    if projection not in get_args(Projection):
        raise unknown_name("--projection", projection, get_args(Projection))
    if data is None and projection in ("pca", "tsne"):
        raise VitreousError(f"--projection {projection}: draws a map of the data, so give --data DATA too, or leave it out")
    folder = user_path(out)
    check_inspection_dir(folder)
    for place in folders_of(words, data):
        check_inspection_dir(folder, place)
    chosen = choose_device(device)

    source, notes = data_split(data) if data is not None else (None, [])
    clf = load(checkpoint, image_size=image_size)
    clf.model.to(chosen)
    preprocess, said = fixed_size(clf)
    at_once = batch_size or 16
    named = named_images(words, preprocess, CLOSELY if source else count, CLOSELY, seed) if words else None
    if source is not None:
        many, closely = data_images(source, preprocess, count, at_once, seed), _OF_DATA
    elif named is not None:
        many, closely = named, CLOSELY
    else:
        many, closely = drawn_scenes(clf, preprocess, count, at_once, seed), _OF_SCENES
    with contextlib.closing(many.images):
        apart = list(named.images) if named is not None and named is not many else []  # what is misspelt ends it here
        cloud = None
        if source is not None and projection != "none":
            cloud, told = cloud_of(clf, source, preprocess, batch_size, chosen, seed)
            notes += told
        found = inspect_model(
            clf,
            many.images,
            closely=closely,
            apart=apart,
            batch_size=batch_size,
            count=many.count,
            cloud=cloud,
            projection=projection,
        )
    readable = found.survey.images if found.survey is not None else many.count - len(many.bad)
    if many is named and found.looks and readable > len(found.looks):
        notes.append(f"{len(found.looks)} of {readable:,} images are looked at closely")
    read = [reading for reading in (named, many) if reading is not None]
    said = [*clf.notes, clf.preprocessing_note(preprocess), *said]
    notes = [*said, *notes, *(note for reading in read for note in reading.said()), *found.notes]
    about = {
        "checkpoint": checkpoint,
        "images_of": many.where,
        "data": data,
        "count": count,
        "projection": projection,
        "seed": seed,
        "device": chosen,
        "notes": list(dict.fromkeys(notes)),
    }
    numbers = write_inspection_dir(folder, found, about, began)
    return Inspected(str(folder), numbers, tuple(numbers["notes"]))
