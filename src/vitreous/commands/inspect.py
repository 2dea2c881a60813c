from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.commands.types import Checkpoint, ImageSize, as_words
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.inspection.inspect_run import Inspected


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
    """Draw attention, filters and positions: the paper's figures and more.

    Writes a page (report.html) that says how to read each figure, what a healthy model shows and what this one shows, every
    figure as PNG and SVG, and the numbers as CSV, JSON and NumPy arrays.

    Example: vitreous inspect runs/pets/checkpoint cat.jpg --data pets:test --out inside

    Args:
        checkpoint: a run, a file, a folder, or a name from `vitreous list weights`.
        images: files, folders, patterns in quotes, or - for names on standard input; up to 12 are shown in detail.
        out: the folder to write to.
        data: labelled images for the statistics and a map of the data; the test split, if there is one.
        count: how many images the statistics are over: of --data, else of IMAGE, else rendered scenes.
        projection: how the map of --data is drawn; auto takes t-SNE where scikit-learn is installed.
        image_size: run the model at another size than the checkpoint's.
        batch_size: how many images to run at once; as many as suit the memory if not given.
        device: cpu, cuda, mps; the best there is if not given.
        seed: random seed of the choice of images where there are more.
    """
    from vitreous.inspection.inspect_run import InspectOptions, run_inspection

    return run_inspection(
        InspectOptions(
            checkpoint=checkpoint,
            images=as_words(images),
            out=user_path(out),
            data=data,
            count=count,
            projection=projection,
            image_size=image_size,
            batch_size=batch_size,
            device=device,
            seed=seed,
        )
    )
