from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.core.errors import VitreousError

if TYPE_CHECKING:
    from vitreous.studies.cost_rows import CostResult
    from vitreous.studies.paper_figures import PaperResult
    from vitreous.studies.run_study import StudyResult

_DECIDED = tyro.conf.arg(help_behavior_hint="")  # the text itself says what holds if it is not given


def study(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help_behavior_hint="")],
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = "",
    *,
    out: str,
    upstream: Annotated[str, _DECIDED] = "",
    budget: Annotated[str | None, _DECIDED] = None,
    level: Annotated[int | None, _DECIDED] = None,
    seeds: Annotated[int | None, _DECIDED] = None,
    primary: bool = False,
    paper: bool = False,
    runs: Annotated[str | None, _DECIDED] = None,
    device: str = "cpu",
    precision: Literal["float32", "bfloat16"] = "float32",
) -> StudyResult | CostResult | PaperResult:
    """Re-run an experiment of the paper, with a verdict on its claim.

    A grid of small runs, a figure, and a verdict by a rule that was fixed beforehand. Kill it at any moment and start
    the same command again: it runs what is missing. Several processes or machines may run the same command in one
    folder at the same time; each takes the runs that no other has.

    The study cost trains nothing: it measures speed and the largest batch of the paper's models.

    Example: vitreous study positions cifar10 --out studies/positions --budget 2h

    Args:
        name: a name of `vitreous list studies`.
        data: a folder, a manifest, builtin:NAME or the name of a known set, with train and test. Default: the study's own.
        upstream: DATA to pre-train on. Default: the study's own, rendered images.
        out: the folder for grid.json, runs.csv, result.json and the figure.
        budget: how long it may take, as 30m, 2h or 1d: chooses models, steps and seeds, and prints them. Default: the smallest
            models; 15m for cost.
        level: the size of models and runs by number, instead of --budget.
        seeds: how many seeds of each arm. Default: as many as the claims need, 6 or 16.
        primary: run only what the primary claim needs; the rest can follow later.
        paper: draw the paper's own numbers as paper.png and paper.svg, and train nothing.
        runs: the folder for training runs, which all studies share. Default: in the cache.
        device: cpu, cuda, mps; auto: the best there is.
        precision: float32, or bfloat16.
    """
    from vitreous.core.device import choose_device
    from vitreous.studies.registry import COST

    if paper:
        _refuse("--paper trains nothing", data, budget=budget, upstream=upstream, level=level, seeds=seeds, runs=runs)
        from vitreous.studies.paper_figures import draw_paper_figure

        return draw_paper_figure(name, out)
    if name == COST:
        _refuse("cost trains nothing", data, upstream=upstream, level=level, seeds=seeds, primary=primary, runs=runs)
        from vitreous.core.files import user_path
        from vitreous.studies.budget import parse_budget
        from vitreous.studies.cost_rows import CostResult
        from vitreous.studies.cost_study import run_cost_study

        rows = run_cost_study(user_path(out), device=device, budget_seconds=parse_budget(budget or "15m"), precision=precision)
        return CostResult(out, tuple(rows))
    from vitreous.studies.run_study import StudyOptions, run_study

    return run_study(
        StudyOptions(
            name=name,
            data=data,
            upstream=upstream,
            out=out,
            budget=budget,
            level=level,
            seeds=seeds,
            primary=primary,
            runs=runs,
            device=choose_device(device),
            precision=precision,
        )
    )


def _refuse(why: str, data: str, **options: Any) -> None:
    """Options that would change nothing."""
    if data:
        raise VitreousError(f"DATA {data}: {why}; leave it out")
    for name, value in options.items():
        if value not in (None, "") and value is not False:
            raise VitreousError(f"--{name}: {why}; leave it out")
