from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.commands.types import BadImages, Checkpoint, EngineOption, ImageSize
from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.evaluation.dense_run import Dense
    from vitreous.evaluation.fewshot_run import Fewshot


_NO_DATA = "fewshot: DATA is missing; name a folder, a manifest, shards or a known set"
_WITHOUT_DENSE = ("subset", "per_class", "draw", "save", "add", "preprocess", "merge_tokens", "engine")
_WITH_ADD = ("checkpoint", "add", "save", "l2", "no_cache", "bad_images", "batch_size", "workers", "device")


def fewshot(
    checkpoint: Checkpoint,
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA[,DATA...]]", help_behavior_hint="")] = "",
    shots: Annotated[str | None, tyro.conf.arg(help_behavior_hint="")] = None,
    seeds: int = 3,
    seed: int = 0,
    data_seed: int = 0,
    subset: int | None = None,
    per_class: int | None = None,
    l2: str = "leave-one-out",
    draw: Literal["seed", "first"] = "seed",
    out: Annotated[str | None, tyro.conf.arg(help_behavior_hint="")] = None,
    save: Annotated[str | None, tyro.conf.arg(help_behavior_hint="", metavar="DIR")] = None,
    add: Annotated[str | None, tyro.conf.arg(help_behavior_hint="", metavar="DATA")] = None,
    dense: bool = False,
    masks: Annotated[str | None, tyro.conf.arg(help_behavior_hint="", metavar="DIR")] = None,
    ignore: str = "255",
    preprocess: Annotated[str | None, tyro.conf.arg(help_behavior_hint="")] = None,
    image_size: Annotated[ImageSize, tyro.conf.arg(help_behavior_hint="")] = None,
    no_cache: bool = False,
    bad_images: BadImages = "stop",
    batch_size: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None,
    workers: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "float32",
    engine: EngineOption = "torch",
    merge_tokens: int = 0,
) -> Fewshot | Dense:
    """Measure frozen features with few labels per class, in closed form.

    The paper's few-shot evaluator: a ridge classifier is fitted to the features of 1, 5, 10, 25 and all images of each
    class and evaluated on held-out ones. The curve says whether more labels would help, or whether the features are the
    limit. Features are cached on disk: a second run takes seconds. Images are drawn from the train split; it is
    evaluated on the test split, or else the validation split.

    Example: vitreous fewshot ViT-B/16@imagenet21k photos/ --shots 1,5,10,25 --out fewshot

    Args:
        checkpoint: a run, a checkpoint, or a name of `vitreous list weights`.
        data: a folder, a manifest, shards, builtin:NAME or the name of a known set; several with commas.
        shots: images of each class, as 1,5,10,25 or 5,all. Default: 1,5,10,25,all, as far as every class has them.
        seeds: how many subsets to draw for each number of shots.
        seed: random seed of the first subset; the others follow.
        data_seed: random seed of --subset and --per-class, and of held-out images where the data has no split for testing.
        subset: draw from a fixed random subset of this many training images.
        per_class: draw from at most this many training images of each class.
        l2: a number; leave-one-out: the best for each fit by its own training images; joint: the one with the best mean rank
            over several data sets, evaluated on their test images, as in the paper.
        draw: seed: random images of each class; first: the first of each class in the order of the data, as in the paper.
        out: a folder for fewshot.json and the learning curve. Default: nothing is written.
        save: a folder for the classifier itself, fitted to all training images or to the one number of --shots: a checkpoint
            like any other, for predict, evaluate, inspect, serve and convert, with calibrated probabilities.
        add: images of further classes for CHECKPOINT, a head that --save wrote; in place of DATA. The head in --save DIR is
            the one that all images together give.
        dense: masks instead of classes: a ridge classifier of patch features, fitted to --shots annotated images in all and
            evaluated by mean IoU on the test images, beside a constant and a fit to colour and place.
        masks: with --dense, the folder of PNG masks, which mirrors that of the images: train/cat/a.jpg has train/cat/a.png.
            Pixel values are class numbers. Default: masks, in the folder of DATA.
        ignore: with --dense, pixel values that take no part, as 255 or 0,255; none: all count.
        preprocess: instead of the checkpoint's own, as 'resize(256)|central_crop(224)|range(-1,1)'; paper: that, for the
            checkpoint's size and pixel values.
        image_size: pixels, as 384 or 224,320. Default: the checkpoint's.
        no_cache: neither read nor write the feature cache.
        batch_size: images that the model takes at once. Default: by their size.
        workers: processes that read images. Default: one for each core.
        device: cpu, cuda, mps; auto: the best there is.
        precision: of the model. float32 is what figures are compared in.
        engine: torch; compile; onnx or openvino (pip install 'vitreous[export]'); auto measures once and takes the fastest.
        merge_tokens: merge this many similar tokens in each layer: faster, a little less accurate; 0 merges none.
    """
    given = dict(locals())
    from vitreous.evaluation.fewshot import parse_shots
    from vitreous.evaluation.fewshot_run import FewshotOptions, parse_l2, run_fewshot

    def refuse(option: str, names: Sequence[str]) -> None:
        """Names of options that have no meaning with this one."""
        for name, parameter in inspect.signature(fewshot).parameters.items():
            if name in names and given[name] != parameter.default:
                other = "DATA" if name == "data" else f"--{name.replace('_', '-')}"
                raise VitreousError(f"{option}: {other} has no meaning with it; leave it out")

    if dense:
        from vitreous.data.masks import parse_ignored
        from vitreous.evaluation.dense_run import DenseOptions, run_dense

        refuse("--dense", _WITHOUT_DENSE)
        if not data:
            raise VitreousError(_NO_DATA)
        return run_dense(
            DenseOptions(
                checkpoint=checkpoint,
                data=data,
                masks=user_path(masks) if masks is not None else None,
                ignored=parse_ignored(ignore),
                shots=parse_shots(shots),
                seeds=seeds,
                seed=seed,
                data_seed=data_seed,
                l2=parse_l2(l2),
                out=user_path(out) if out is not None else None,
                image_size=image_size,
                cache=not no_cache,
                bad_images=bad_images,
                batch_size=batch_size,
                workers=workers,
                device=device,
                precision=precision,
            )
        )
    if masks is not None or ignore != "255":
        raise VitreousError(f"{'--masks' if masks is not None else '--ignore'}: only with --dense; add it")
    if add is not None:
        from vitreous.evaluation.add_classes import AddOptions, add_classes

        refuse(f"--add {add}", [name for name in given if name not in _WITH_ADD])
        return add_classes(
            AddOptions(
                checkpoint=checkpoint,
                add=add,
                save=user_path(save) if save is not None else None,
                l2=parse_l2(l2),
                cache=not no_cache,
                bad_images=bad_images,
                batch_size=batch_size,
                workers=workers,
                device=device,
            )
        )
    if not data:
        raise VitreousError(_NO_DATA)
    return run_fewshot(
        FewshotOptions(
            checkpoint=checkpoint,
            data=data,
            shots=parse_shots(shots),
            seeds=seeds,
            seed=seed,
            data_seed=data_seed,
            subset=subset,
            per_class=per_class,
            l2=parse_l2(l2),
            draw=draw,
            out=user_path(out) if out is not None else None,
            save=user_path(save) if save is not None else None,
            preprocess=preprocess,
            image_size=image_size,
            cache=not no_cache,
            bad_images=bad_images,
            batch_size=batch_size,
            workers=workers,
            device=device,
            precision=precision,
            engine=engine,
            merge_tokens=merge_tokens,
        )
    )
