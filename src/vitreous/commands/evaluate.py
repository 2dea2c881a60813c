from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.commands.types import BadImages, Checkpoint, EngineOption, ImageSize
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.evaluation.evaluation_result import EvaluationResult


def evaluate(
    checkpoint: Checkpoint,
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    split: str | None = None,
    out: str | None = None,
    compare: str | None = None,
    real: str | None = None,
    mapping: str | None = None,
    among: Literal["all", "mapped"] = "all",
    interval: Literal["wilson", "bootstrap"] = "wilson",
    robustness: bool = False,
    robustness_images: int = 1000,
    nearest: str | None = None,
    coverage: float | None = None,
    save_calibration: bool = False,
    image_size: ImageSize = None,
    preprocess: str | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "float32",
    engine: EngineOption = "torch",
    merge_tokens: int = 0,
    tta: Literal["none", "flip"] = "none",
    soup: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="CHECKPOINT")] = (),
    bad_images: BadImages = "stop",
    seed: int = 0,
    data_seed: int = 0,
) -> EvaluationResult:
    """Measure accuracy, calibration and every class on labelled images.

    Every image is counted once, whatever the batch size and however many processes torchrun starts. With --out, a page shows
    the images behind every number.

    Example: vitreous evaluate runs/pets pets:test --out evaluation --compare runs/older

    Args:
        checkpoint: a run, a file, a folder, or a name from `vitreous list weights`.
        data: a folder, a manifest, shards, `builtin:NAME` or the name of a known set; `DATA:test` is one split of it.
        split: which split to measure on; by default test, else validation, else the only one.
        out: a folder to write to: report.html, evaluation.json, predictions.csv and relabel.csv.
        compare: another checkpoint, measured on the same images with its own preprocessing, and a paired test.
        real: the original real.json, for ImageNet's validation images: accuracy by the reassessed labels too.
        mapping: a .json, .toml or .csv file from the data's classes to one or several of the model's, as ObjectNet needs.
        among: whether the model may name any of its classes, or only those that the data's are mapped to.
        interval: how the 95 % intervals are made: by Wilson's formula, or by resampling the images.
        robustness: measure accuracy against brightness, blur, JPEG quality, crop and resolution too.
        robustness_images: on how many images, chosen by --data-seed.
        nearest: training data, of which the page shows the images nearest to each mistake; needs --out.
        coverage: as 0.9: how often prediction sets with this coverage hold the true class, and how often they abstain.
        save_calibration: keep the scores of these images in the checkpoint, for --coverage of predict, serve and evaluate;
            images that it was not trained on, as DATA:validation.
        image_size: pixels, as 384 or 224,320; the checkpoint's own if not given.
        preprocess: instead of the checkpoint's own, as 'resize_small(256)|central_crop(224)|range(-1,1)'.
        batch_size: images that one process runs at once; by their size if not given.
        workers: processes that read images; one for each core if not given, 0 for none.
        device: cpu, cuda, mps; the best there is if not given.
        precision: float32 is exact; auto takes bfloat16 where it is faster.
        engine: torch; compile; onnx or openvino (pip install 'vitreous[export]'); auto measures once and takes the fastest.
        merge_tokens: merge this many similar tokens in each layer: faster, a little less accurate; not in --compare.
        tta: test-time augmentation. flip: the mean outputs of each image and its mirror image, for twice the work.
        soup: another checkpoint of the same architecture and classes, whose weights are averaged with the first's; repeatable.
            With --out, the average is in OUT/checkpoint.
        seed: random seed of the bootstrap.
        data_seed: random seed of the images for --robustness.
    """
    from vitreous.evaluation.evaluate import EvaluateOptions, run_evaluation

    return run_evaluation(
        EvaluateOptions(
            checkpoint=checkpoint,
            data=data,
            split=split,
            out=user_path(out) if out is not None else None,
            compare=compare,
            real=user_path(real) if real is not None else None,
            mapping=user_path(mapping) if mapping is not None else None,
            among=among,
            interval=interval,
            robustness_images=robustness_images if robustness else None,
            nearest=nearest,
            coverage=coverage,
            save_calibration=save_calibration,
            image_size=image_size,
            preprocess=preprocess,
            batch_size=batch_size,
            workers=workers,
            device=device,
            precision=precision,
            engine=engine,
            merge_tokens=merge_tokens,
            tta=tta,
            soup=tuple(soup),
            bad_images=bad_images,
            seed=seed,
            data_seed=data_seed,
        )
    )
