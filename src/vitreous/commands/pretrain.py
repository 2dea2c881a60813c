from __future__ import annotations

from typing import Annotated, Literal, Unpack

import tyro

from vitreous.commands.run_options import RunOptions
from vitreous.commands.training_run import Run, train


def pretrain(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = "",
    model: Annotated[str, tyro.conf.arg(help_behavior_hint="")] = "",
    objective: Annotated[Literal["classification", "masked-patch"] | None, tyro.conf.arg(help_behavior_hint="")] = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Train a model from scratch, by labels or by masked patches (section 4.1 and appendix B.1.2 of the paper).

    A folder, a manifest, shards or a known set becomes a run: OUT/checkpoint is the result, OUT/report.html tells of it. Kill
    it at any moment and start the same command again: it goes on as if nothing had been. Several processes: torchrun.

    Example: vitreous pretrain builtin:digits --model ViT-Ti/2 --set model.width=96,model.depth=4 --epochs 60 --out runs/digits

    Args:
        data: a folder, a manifest, shards, builtin:NAME or the name of a known set.
        model: a name of `vitreous list models`, or in their grammar. Default: ViT-B/16.
        objective: what is learnt: the images' classes, or the colours of hidden patches. Default: classification.
    """
    own = {"data": data, "model": model, "objective": objective}
    return train("pretrain", {**options, **{name: value for name, value in own.items() if value}})
