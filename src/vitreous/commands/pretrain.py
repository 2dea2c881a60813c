from __future__ import annotations

from typing import Annotated, Any

import tyro

from vitreous.commands.training_run import Run, start_run
from vitreous.training.options import TrainOptions


def pretrain(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = "",
    model: str | None = None,
    objective: str | None = None,
    **options: Annotated[Any, TrainOptions],
) -> Run:
    """Train a model from scratch, by labels or by masked patches.

    Section 4.1 and appendix B.1.2 of the paper. A folder, a manifest, shards or a known set becomes a run:
    OUT/checkpoint is the result, OUT/report.html shows it. Kill it at any moment and start the same command again: it
    ends with the same bytes. Several processes: torchrun.

    Example: vitreous pretrain builtin:digits --model ViT-Ti/2 --set model.width=96,model.depth=4 --epochs 60 --out runs/digits

    Args:
        data: a folder, a manifest, shards, builtin:NAME or the name of a known set.
    """
    return start_run("pretrain", {"data": data, "model": model, "objective": objective, **options})
