from __future__ import annotations

from typing import Annotated, Literal, Unpack

import tyro

from vitreous.commands.run_options import RunOptions
from vitreous.commands.training_run import Run
from vitreous.commands.training_run import train as train_with


def finetune(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = "",
    from_: Annotated[str, tyro.conf.arg(name="from", help_behavior_hint="")] = "",
    model: Annotated[str, tyro.conf.arg(help_behavior_hint="")] = "",
    train: Annotated[Literal["all", "head"] | None, tyro.conf.arg(help_behavior_hint="")] = None,
    sweep: bool = False,
    **options: Unpack[RunOptions],
) -> Run:
    """Fine-tune a pretrained model on data of your own, at any resolution (sections 3.2 and 4.1 of the paper).

    First the frozen features are judged in closed form, which takes seconds: so you know what fine-tuning is worth. Kill it at
    any moment and start the same command again: it goes on as if nothing had been. Several processes: torchrun.

    Example: vitreous finetune photos/ --from ViT-B/16@imagenet21k --image-size 384 --out runs/photos

    Args:
        data: a folder, a manifest, shards, builtin:NAME or the name of a known set.
        from_: a run, a checkpoint, or a name of `vitreous list weights`; or `scratch`, with --model.
        model: with --from scratch: a name of `vitreous list models`.
        train: all, or head: a linear probe, by recipe linear-probe. Default: all, or as the recipe has it.
        sweep: try the recipe's learning rates on a held-out part of the training images first; then train on all of them.
    """
    given = {"data": data, "from_": from_, "model": model, "train": train, "sweep": sweep}
    own: dict[str, object] = {name: value for name, value in given.items() if value}
    if from_ == "scratch":
        own["from_"] = None  # also where a config that is replayed has one
    return train_with("finetune", {**options, **own})
