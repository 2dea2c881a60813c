"""VTAB-1k as a suite: the 19 tasks in the paper's order, with its settings and the figures of its Table 9."""

from __future__ import annotations

from vitreous.data.datasets.vtab_tasks import TASKS, VtabTask, find_task
from vitreous.studies.paper_tables import read_table
from vitreous.studies.suite import Protocol, Suite, Task

_PAPER = {
    "ViT-H/14 (JFT)": ("ViT-H/14", "jft"),
    "ViT-L/16 (JFT)": ("ViT-L/16", "jft"),
    "ViT-L/16 (ImageNet-21k)": ("ViT-L/16", "imagenet21k"),
}  # columns of Table 9


def vtab_suite(folder: str, names: tuple[str, ...] = ()) -> Suite:
    """`folder` holds the task folders; `names` chooses some tasks, by any of the names that they go by."""
    chosen = {find_task(name).name for name in names}
    tasks = tuple(_task(task, folder) for task in TASKS if not chosen or task.name in chosen)
    return Suite("VTAB-1k", tasks, of=len(TASKS), paper=tuple(_PAPER), published=Protocol())


def _task(task: VtabTask, folder: str) -> Task:
    return Task(
        name=task.name,
        data=f"vtab:{task.name}@{folder}",
        sweep_data=f"vtab:{task.name}/sweep@{folder}",
        group=task.group,
        crop=task.crop,
        flip=task.flip,
        title=task.title,
        whole=True,
        paper=_published(task.name),
        test_images=task.test_images,
    )


def _published(task: str) -> tuple[float, ...]:
    """The accuracies of Table 9 in percent, column by column."""
    found = {(row.model, row.pretraining): row.value for row in read_table("table9") if row.task == task}
    return tuple(found[column] for column in _PAPER.values())
