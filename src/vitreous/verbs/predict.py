from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitreous.verbs.shared import Checkpoint
from vitreous.verbs.table import table

_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".avif", ".ppm", ".pgm"}


@dataclass(frozen=True)
class Row:
    """One image: its likeliest classes, or what was wrong with it."""

    path: str
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Predictions:
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 2 if all(row.error for row in self.rows) else 0

    def text(self) -> str:
        cells = []
        for row in self.rows:
            best = (f"{name} {p:.1%}" for name, p in zip(row.classes, row.probabilities, strict=True))
            cells.append((row.path, row.error or ", ".join(best)))
        return table(("image", "prediction"), cells)

    def records(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            if row.error:
                yield {"path": row.path, "error": row.error}
            else:
                yield {"path": row.path, "classes": row.classes, "probabilities": row.probabilities}


def predict(
    checkpoint: Checkpoint,
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")],
    top: int = 5,
    batch_size: int = 32,
) -> Predictions:
    """Predict the classes of images with a checkpoint of any kind.

    An image that cannot be read is reported in its row and does not end the run.

    Example: vitreous predict runs/pets/checkpoint cat.jpg photos/

    Args:
        checkpoint: a file, a folder, or a name from `vitreous list weights`.
        images: image files, and folders that are searched for them.
        top: how many classes to tell.
        batch_size: how many images to run at once.
    """
    from vitreous.classifier import load
    from vitreous.errors import VitreousError

    if top < 1:
        raise VitreousError(f"--top {top}: must be at least 1")
    if batch_size < 1:
        raise VitreousError(f"--batch-size {batch_size}: must be at least 1")
    paths = list(_expand(images))
    if not paths:
        raise VitreousError("no images given; name image files, or folders that hold some")
    clf = load(checkpoint)
    rows: list[Row] = []
    for start in range(0, len(paths), batch_size):
        prepared, fine = [], []
        found: dict[str, Row] = {}
        batch = paths[start : start + batch_size]
        for path in batch:
            try:
                prepared.append(clf.prepare(path))
                fine.append(path)
            except VitreousError as error:
                found[path] = Row(path, error=str(error).removeprefix(f"{path}: "))
        if fine:
            import torch

            for path, best in zip(fine, clf.predict(torch.cat(prepared), top=top, batch_size=batch_size), strict=True):
                found[path] = Row(path, best.classes, best.probabilities)
        rows += [found[path] for path in batch]
    return Predictions(tuple(rows), clf.notes)


def _expand(images: tuple[str, ...]) -> Iterator[str]:
    for image in images:
        path = Path(image)
        if path.is_dir():
            for inside in sorted(path.rglob("*")):
                if inside.suffix.lower() in _SUFFIXES and not any(p.startswith(".") for p in inside.relative_to(path).parts):
                    yield str(inside)
        else:
            yield image
