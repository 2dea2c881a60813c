"""A suite: tasks that a model is transferred to with the same settings for all, as VTAB does it (PAPER 4.3).

name = "factory"
[protocol]                # what is left out is the paper's
steps = 500
image_size = 224
[[task]]
name = "screws"
group = "parts"
data = "photos/screws"    # DATA as everywhere; a path is relative to this file
flip = false              # a mirrored screw has another label
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from vitreous.core.errors import VitreousError, one_line, unknown_name
from vitreous.core.fields import Between, check_fields, check_value, field_types
from vitreous.core.files import user_path

PACKAGED = ("small",)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")  # it becomes the name of a folder


@dataclass(frozen=True)
class Protocol:
    """How every task is learnt. The defaults are the paper's, with the batch and warm-up of its authors' configuration."""

    steps: Annotated[int, Between(1)] = 2_500
    lr: Annotated[float, Between(1e-12, 1e6)] = 0.01
    batch_size: Annotated[int, Between(1)] = 512
    image_size: Annotated[tuple[int, int], Between(1)] = (384, 384)
    warmup: int = 200
    seeds: Annotated[int, Between(1)] = 3
    examples: Annotated[int, Between(1)] = 1_000  # of each task, to learn from
    sweep_lr: Annotated[tuple[float, ...], Between(1e-12, 1e6)] = ()  # none: 0.3 times `lr`, and `lr`
    sweep_steps: Annotated[tuple[int, ...], Between(1)] = ()  # none: a fifth of `steps`, and `steps`

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"{name}={value}:")
        if not 0 <= self.warmup < max(2, self.steps):
            raise VitreousError(f"warmup={self.warmup}: must be below the {self.steps:,} steps of a run")

    def rates(self) -> tuple[float, ...]:
        """The learning rates of a sweep. The paper tried two and says only which was better: 0.01; 0.003 is the one below it
        among those of its Table 4."""
        return self.sweep_lr or (_plain(0.3 * self.lr), self.lr)

    def lengths(self) -> tuple[int, ...]:
        """The schedules of a sweep. The paper does not name its two either; 500 and 2,500 steps are the lengths that its
        Table 4 has for small sets and for VTAB."""
        return self.sweep_steps or tuple(sorted({max(1, round(self.steps / 5)), self.steps}))

    def at(self, *, steps: int | None = None, batch_size: int | None = None, **others: Any) -> Protocol:
        """The same with other values. Without words on them, the rate follows the batch in proportion, as everywhere here for
        SGD, and the warm-up is at most a tenth of the run."""
        values = {name: value for name, value in others.items() if value is not None}
        if steps is not None and steps != self.steps:
            values["steps"] = steps
            values.setdefault("sweep_steps", ())
            values.setdefault("warmup", min(self.warmup, round(steps / 10)) if steps > 0 else 0)
        if batch_size is not None and batch_size != self.batch_size:
            values["batch_size"] = batch_size
            factor = batch_size / self.batch_size
            if factor > 0 and "lr" not in values:
                values["lr"] = _plain(self.lr * factor)
                values.setdefault("sweep_lr", tuple(_plain(rate * factor) for rate in self.sweep_lr))
        return replace(self, **values)

    def record(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def _plain(rate: float) -> float:
    """To four digits, so that people can read and repeat it."""
    return float(f"{rate:.4g}")


@dataclass(frozen=True)
class Task:
    name: str
    data: str  # DATA
    group: str = "all"
    crop: bool = True  # whether a random crop leaves the label true
    flip: bool = True  # whether mirroring does
    # To learn from; None: as many as the protocol says, or all if there are fewer.
    examples: Annotated[int | None, Between(1)] = None
    title: str = ""  # for tables and charts
    sweep_data: str = ""  # DATA with train and validation for a sweep; none: a fifth of the examples is held out
    whole: bool = False  # train and test are as they are to be; nothing is drawn
    paper: tuple[float, ...] = ()  # accuracies in percent, of the suite's paper columns
    test_images: int | None = None  # of the published test split

    @property
    def shown(self) -> str:
        return self.title or self.name


@dataclass(frozen=True)
class Suite:
    name: str
    tasks: tuple[Task, ...]
    protocol: Protocol = Protocol()
    of: int = 0  # how many tasks the whole suite has; these may be some of them
    paper: tuple[str, ...] = ()  # models whose published figures stand beside
    published: Protocol | None = None  # the settings that those were made with

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task.group for task in self.tasks))

    def only(self, names: Sequence[str]) -> Suite:
        """Some of its tasks, in the suite's order."""
        known = [task.name for task in self.tasks]
        for name in names:
            if name not in known:
                raise unknown_name(f"task of suite {self.name}", name, known)
        return replace(self, tasks=tuple(task for task in self.tasks if task.name in names))


# From TOML -------------------------------------------------------------------------------------------------------------


def read_suite(name: str) -> Suite:
    """From a file, or one of those that come with the package."""
    if name in PACKAGED and not Path(name).exists():
        text = resources.files("vitreous.studies").joinpath("suites", f"{name}.toml").read_text(encoding="utf-8")
        return parse_suite(text, f"suite {name}", Path())
    path = user_path(name)
    if not path.suffix and not path.exists():
        raise VitreousError(f"--suite {name}: no such file, and no suite of that name; there is {', '.join(PACKAGED)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else one_line(error)
        raise VitreousError(f"--suite {name}: cannot be read ({why}); give a TOML file, see docs/how-to/vtab.md") from error
    return parse_suite(text, str(path), path.absolute().parent)


def parse_suite(text: str, where: str, base: Path) -> Suite:
    """`base` is what paths are relative to."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise VitreousError(f"{where}: is no valid TOML ({one_line(error)}); see docs/how-to/vtab.md for an example") from error
    _check_keys(found, ("name", "protocol", "task"), where)
    name = _check_name(found, where, "factory")
    table = found.get("protocol", {})
    if not isinstance(table, dict):
        raise VitreousError(f"{where}: protocol must be a table, [protocol]")
    if isinstance(size := table.get("image_size"), int):
        table["image_size"] = [size, size]
    values = _read_fields(table, Protocol, tuple(field_types(Protocol)), f"{where} [protocol]")
    try:
        protocol = Protocol().at(**values)
    except VitreousError as error:
        raise VitreousError(f"{where} [protocol]: {error}") from None
    tables = found.get("task", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise VitreousError(f"{where}: has no tasks; each is a [[task]] with a name and data")
    tasks = tuple(_read_task(table, f"{where} [[task]] {number}", base) for number, table in enumerate(tables, 1))
    names = [task.name.casefold() for task in tasks]  # as folders, on systems that do not tell A from a
    for task in tasks:
        if names.count(task.name.casefold()) > 1:
            raise VitreousError(f"{where}: two tasks are called {task.name}; give each its own name")
    return Suite(name, tasks, protocol, of=len(tasks))


def _read_task(table: Mapping[str, Any], where: str, base: Path) -> Task:
    values = _read_fields(table, Task, ("name", "data", "group", "crop", "flip", "examples", "title"), where)
    name = _check_name(values, where, "screws")
    if not values.get("data", "").strip():
        raise VitreousError(f'{where} ({name}): needs data, as data = "photos/screws"')
    return Task(**{**values, "data": resolve_data(values["data"], base), "group": values.get("group") or "all"})


def _check_name(table: Mapping[str, Any], where: str, example: str) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise VitreousError(f'{where}: needs a name of letters, digits, - and _, as name = "{example}"')
    return name


def _check_keys(table: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for key in table:
        if key not in names:
            raise unknown_name(f"key in {where}", key, names)


def _read_fields(table: Mapping[str, Any], kind: type, names: Sequence[str], where: str) -> dict[str, Any]:
    """The values of a TOML table, each of its field's type and within its range."""
    _check_keys(table, names, where)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    for name, value in values.items():
        check_value(field_types(kind)[name], value, name, lambda name, shown: f"{where}: {name} = {shown}")
    return values


def resolve_data(data: str, base: Path) -> str:
    """DATA with its path, if it has one, relative to `base`. Names of known sets stay what they are."""
    from vitreous.data.datasets import registry as named

    if "://" in data or data.startswith(("builtin:", "hf:")):
        return data
    head, at, folder = data.partition("@")
    if at and (head.startswith("vtab:") or named.is_known(head)):
        return f"{head}@{base / user_path(folder)}"
    path = base / user_path(data)
    bare = "/" not in data and not Path(data).suffix and not path.exists()
    return data if bare else str(path)  # of a bare name that is no path, opening it says what it looks like
