"""VTAB-1k as a suite: the 19 tasks in the paper's order, with its settings and the figures of its Table 9."""

from __future__ import annotations

from vitreous.data.datasets.vtab_tasks import PAPER_TITLES, TASKS, VtabTask, find_task
from vitreous.studies.suite import Protocol, Suite, Task


def vtab_suite(folder: str, names: tuple[str, ...] = ()) -> Suite:
    """`folder` holds the task folders; `names` chooses some tasks, by any of the names that they go by."""
    chosen = {find_task(name).name for name in names}
    tasks = tuple(_task(task, folder) for task in TASKS if not chosen or task.name in chosen)
    return Suite("VTAB-1k", tasks, of=len(TASKS), paper=PAPER_TITLES, published=Protocol())


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
        paper=tuple(task.paper),
        test_images=task.test_images,
    )
