from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.commands.types import Checkpoint, EngineOption, ImageSize, as_words
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.classifier import Classifier
    from vitreous.inference.predict_run import Predictions


def predict(
    checkpoint: Checkpoint,
    images: Annotated[Sequence[str], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE...", help_behavior_hint="(required)")],
    top: int = 5,
    coverage: float | None = None,
    out: str | None = None,
    csv: bool = False,
    image_size: ImageSize = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "float32",
    engine: EngineOption = "torch",
    merge_tokens: int = 0,
) -> Predictions:
    """Predict the classes of images, a few or millions.

    Rows are in the order of the images and are printed as they are computed. An image that cannot be read is reported in its
    row and does not end the run. With --out, an interrupted command resumes when started again. Several processes: torchrun.

    Example: vitreous predict runs/pets/checkpoint cat.jpg photos/ --out rows.jsonl

    Args:
        checkpoint: a run, a file, a folder, or a name from `vitreous list weights`.
        images: files, folders, patterns in quotes such as 'photos/**/*.jpg', or - for names on standard input.
        top: how many classes to print.
        coverage: as 0.9: add prediction sets that hold the true class for this share of images; several classes: abstain.
        out: a file for the rows instead of printing them: .jsonl or .csv.
        csv: print rows as CSV.
        image_size: run the model at another size than the checkpoint's.
        batch_size: how many images to run at once; as many as suit their size and the device if not given.
        workers: processes that read images; one for each core if not given, 0 for none.
        device: cpu, cuda, mps; the best there is if not given.
        precision: auto takes bfloat16, with fewer digits, where it is faster.
        engine: torch; compile; onnx or openvino (pip install 'vitreous[export]'); auto measures once and takes the fastest.
        merge_tokens: merge this many similar tokens in each layer: faster, a little less accurate; 0 merges none.
    """
    from vitreous.inference.predict_run import PredictOptions, run_prediction

    options = PredictOptions(
        checkpoint=checkpoint,
        images=as_words(images),
        top=top,
        out=None if out is None else user_path(out),
        csv=csv,
        batch_size=batch_size,
        workers=workers,
        device=device,
        precision=precision,
        engine=engine,
        merge_tokens=merge_tokens,
        coverage=coverage,
    )

    def load_model() -> Classifier:
        from vitreous.classifier import load

        return load(checkpoint, image_size=image_size)

    return run_prediction(options, load_model)
