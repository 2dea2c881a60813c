from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.commands.types import Changes, Checkpoint, EngineOption, ImageSize

if TYPE_CHECKING:
    from vitreous.studies.run_suite import SuiteResult

_DECIDED = tyro.conf.arg(help_behavior_hint="")  # the text itself says what holds if it is not given


def vtab(
    checkpoint: Checkpoint,
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = "",
    *,
    out: str,
    suite: Annotated[str, tyro.conf.arg(metavar="FILE|small", help_behavior_hint="")] = "",
    tasks: Annotated[str, tyro.conf.arg(metavar="A,B", help_behavior_hint="")] = "",
    mode: Literal["finetune", "linear"] = "finetune",
    seeds: Annotated[int | None, _DECIDED] = None,
    sweep: bool = False,
    image_size: Annotated[ImageSize, _DECIDED] = None,
    steps: Annotated[int | None, _DECIDED] = None,
    batch_size: Annotated[int | None, _DECIDED] = None,
    set: Annotated[Changes, _DECIDED] = (),
    keep_weights: bool = False,
    workers: Annotated[int | None, _DECIDED] = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    engine: EngineOption = "torch",
    seed: int = 0,
    data_seed: int = 0,
) -> SuiteResult:
    """Transfer to the 19 tasks of VTAB-1k, or to your own suite.

    The paper's protocol: the same settings for all tasks, three seeds, the mean of the test accuracies, beside its Table 9.
    Kill it at any moment and start the same command again: it does what is missing. Several processes: torchrun.

    Example: vitreous vtab ViT-B/16@imagenet21k vtab-1k/ --mode linear --out runs/vtab

    Args:
        checkpoint: a run, a checkpoint, or a name of `vitreous list weights`.
        data: the folder that holds VTAB's task folders (see docs/how-to/vtab.md); not with --suite.
        out: the folder for runs.csv, the table, the chart and the runs. Started again, it resumes.
        suite: a TOML file that lists tasks of your own, or `small`, which needs no download (see docs/how-to/vtab.md).
        tasks: some of the tasks only.
        mode: finetune, as the paper; or linear: closed form on frozen features, for a quick answer.
        seeds: how many runs of each task. Default: the suite's, 3.
        sweep: first choose among two learning rates and two lengths, by the mean over all tasks' validation images.
        image_size: pixels. Default: the suite's, 384; for VTAB in closed form the checkpoint's own.
        steps: of each run. Default: the suite's, 2,500.
        batch_size: images per step; the learning rate follows. Default: the suite's, 512. In closed form: images at once.
        set: change the recipe of all runs, as lr=0.003,schedule=linear. Repeatable; see docs/reference/recipes.md.
        keep_weights: keep every run's checkpoint, which is dropped otherwise once its score is recorded.
        workers: processes that read images; one for each core if not given, 0 for none.
        device: cpu, cuda, mps; auto: the best there is.
        precision: auto: whichever this machine is faster in.
        engine: of --mode linear: torch; compile; onnx or openvino (pip install 'vitreous[export]'); auto measures once and
            takes the fastest.
        seed: the first of the seeds.
        data_seed: random seed of examples and test images, where a task does not list them: the same for all seeds.
    """
    from vitreous.core.device import choose_device
    from vitreous.studies.run_suite import run_suite
    from vitreous.studies.suite_options import SuiteOptions

    return run_suite(
        SuiteOptions(
            checkpoint=checkpoint,
            data=data,
            suite=suite,
            tasks=tasks,
            out=out,
            mode=mode,
            seeds=seeds,
            sweep=sweep,
            image_size=image_size,
            steps=steps,
            batch_size=batch_size,
            set=set,
            keep_weights=keep_weights,
            workers=workers,
            device=choose_device(device),
            precision=precision,
            engine=engine,
            seed=seed,
            data_seed=data_seed,
        )
    )
