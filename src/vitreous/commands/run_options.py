"""The options that every verb that trains has. Each is passed on only if it was given: what is not is decided, and said."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

import tyro

from vitreous.commands.types import BadImages, Changes, ImageSize


def _option(text: str) -> object:
    return tyro.conf.arg(help=text, help_behavior_hint="")


class RunOptions(TypedDict, total=False):
    out: Annotated[str, _option("the run's folder. Started again, a run goes on where it was. Required.")]
    recipe: Annotated[str, _option("how to train: a name of `vitreous list recipes`. Default: one for the data, with reasons.")]
    set: Annotated[
        Changes,
        _option(
            "change the recipe, as lr=3e-4,warmup=100, or the model, as model.width=96. Repeatable; "
            "see docs/reference/recipes.md."
        ),
    ]
    config: Annotated[str, _option("replay RUN/config.json; options given beside it override it.")]
    seed: Annotated[int, _option("random seed of initialisation, order, augmentation and dropout. Default: 0.")]
    data_seed: Annotated[int, _option("random seed of splits and subsets, so that --seed keeps the test images. Default: 0.")]
    steps: Annotated[int, _option("how many steps to take.")]
    epochs: Annotated[float, _option("how often to see each image; instead of --steps.")]
    batch_size: Annotated[int, _option("images per step, over all processes; learning rates follow.")]
    image_size: Annotated[
        ImageSize, _option("pixels, as 384 or 224,320. Default: small pictures' own, the checkpoint's, or 224.")
    ]
    preprocess: Annotated[str, _option("for training, as 'inception_crop(224)|flip|range(-1,1)'.")]
    save_every: Annotated[int, _option("steps between states to resume from. Default: every three minutes.")]
    eval_every: Annotated[int, _option("steps between evaluations; 0: at the end only. Default: ten in a run.")]
    workers: Annotated[int, _option("processes that read images. Default: one for each core.")]
    device: Annotated[str, _option("cpu, cuda, cuda:1, mps, xpu. Default: the best there is.")]
    precision: Annotated[Literal["auto", "float32", "bfloat16"], _option("Default: auto, bfloat16 where it is faster here.")]
    engine: Annotated[Literal["eager", "compile"], _option("compile: with torch.compile. Default: eager.")]
    micro_batch: Annotated[str, _option("images per pass and process; auto: measured. Default: as many as fit into memory.")]
    parallel: Annotated[
        Literal["ddp", "fsdp", "hybrid"], _option("with torchrun: copies of the model, or pieces of it. Default: ddp.")
    ]
    shard_group: Annotated[int, _option("hybrid: how many processes share one copy. Default: those of one machine.")]
    activation_checkpointing: Annotated[bool, _option("compute activations again instead of keeping them: less memory.")]
    bad_images: BadImages
    subset: Annotated[int, _option("train on a fixed random subset of so many images.")]
    per_class: Annotated[int, _option("train on at most so many images of each class.")]
    held_out: Annotated[float, _option("judge by this share of the training images instead of the data's own split.")]
    track: Annotated[str, _option("send metrics on: tensorboard, wandb, or tensorboard,wandb.")]
    extend: Annotated[bool, _option("with a larger --steps or --epochs: let the run in OUT become longer.")]
