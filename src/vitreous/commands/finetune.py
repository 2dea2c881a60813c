from __future__ import annotations

from typing import Annotated, Any

import tyro

from vitreous.commands.training_run import Run, start_run
from vitreous.training.options import TrainOptions


def finetune(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = "",
    from_: str | None = None,
    model: str | None = None,
    **options: Annotated[Any, TrainOptions],
) -> Run:
    """Fine-tune a pretrained model on your own data, at any resolution.

    Sections 3.2 and 4.1 of the paper. First the frozen features are evaluated in closed form, which takes seconds: the head
    starts from there, or has to beat it, as the recipe says. Kill it at any moment and start the same command again: it
    ends with the same bytes. Several processes: torchrun.

    Example: vitreous finetune photos/ --from ViT-B/16@imagenet21k --image-size 384 --out runs/photos

    Args:
        data: a folder, a manifest, shards, builtin:NAME or the name of a known set.
    """
    return start_run("finetune", {"data": data, "from_": from_, "model": model, **options})
