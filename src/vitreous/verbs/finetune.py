from __future__ import annotations

from typing import Annotated, Unpack

import tyro

from vitreous.verbs.run_options import RunOptions
from vitreous.verbs.training_run import Run, train


def finetune(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = "",
    from_: Annotated[str, tyro.conf.arg(name="from", help_behavior_hint="")] = "",
    model: Annotated[str, tyro.conf.arg(help_behavior_hint="")] = "",
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
        sweep: try the recipe's learning rates on a held-out part of the training images first; then train on all of them.
    """
    own = {name: value for name, value in {"data": data, "from_": from_, "model": model, "sweep": sweep}.items() if value}
    if from_ == "scratch":
        own["from_"] = None  # also where a config that is replayed has one
    return train("finetune", {**options, **own})
