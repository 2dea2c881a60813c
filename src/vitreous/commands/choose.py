from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.commands.types import BadImages, Checkpoint, EngineOption, ImageSize
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.evaluation.choose_run import ChosenImages


def choose(
    checkpoint: Checkpoint,
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = "",
    *,
    unlabelled: Annotated[str, tyro.conf.arg(metavar="DATA")],
    count: int = 100,
    strategy: Literal["combined", "uncertainty", "diversity", "random"] = "combined",
    seed: int = 0,
    out: Annotated[str | None, tyro.conf.arg(help_behavior_hint="", metavar="FILE")] = None,
    image_size: Annotated[ImageSize, tyro.conf.arg(help_behavior_hint="")] = None,
    no_cache: bool = False,
    bad_images: BadImages = "stop",
    batch_size: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None,
    workers: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "float32",
    engine: EngineOption = "torch",
) -> ChosenImages:
    """Choose which images to label next.

    From frozen features, without training: images that represent many others which the labelled ones do not, and of which a
    closed-form classifier fitted to the labelled ones is not sure. Images that are in DATA already are not chosen again.

    Example: vitreous choose ViT-B/16@imagenet21k photos/ --unlabelled more-photos/ --count 20 --out next.csv

    Args:
        checkpoint: a run, a checkpoint, or a name of `vitreous list weights`.
        data: what is labelled so far: a folder, a manifest or a known set, of any size. Leave it out if nothing is.
        unlabelled: images to choose from, a folder or a manifest; labels in it are ignored.
        count: how many to choose.
        strategy: diversity: represent all images; uncertainty: the smallest margin between two classes; combined: represent
            those of which the classifier is not sure; random: the baseline.
        seed: random seed, of random and of samples from more than 20,000 images.
        out: a manifest of the chosen images, .csv or .jsonl, for the labels; a page with thumbnails is written beside it.
        image_size: pixels, as 384 or 224,320. Default: the checkpoint's.
        no_cache: neither read nor write the feature cache.
        batch_size: images that the model takes at once. Default: by their size.
        workers: processes that read images. Default: one for each core.
        device: cpu, cuda, mps; auto: the best there is.
        precision: of the model; auto takes bfloat16, with fewer digits, where it is faster.
        engine: torch; compile; onnx or openvino (pip install 'vitreous[export]'); auto measures once and takes the fastest.
    """
    from vitreous.evaluation.choose_run import ChooseOptions, run_choose

    return run_choose(
        ChooseOptions(
            checkpoint=checkpoint,
            data=str(data) or None,
            unlabelled=str(unlabelled),
            count=count,
            strategy=strategy,
            seed=seed,
            out=user_path(out) if out is not None else None,
            image_size=image_size,
            cache=not no_cache,
            bad_images=bad_images,
            batch_size=batch_size,
            workers=workers,
            device=device,
            precision=precision,
            engine=engine,
        )
    )
