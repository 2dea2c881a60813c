"""Types of arguments that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Protocol

import tyro

from vitreous.data.option_types import BadImages as BadImages
from vitreous.data.option_types import Changes as Changes
from vitreous.data.option_types import EngineOption as EngineOption
from vitreous.data.option_types import ImageSize as ImageSize


def as_words(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """One path or several, as Python callers and the command line give them."""
    return [os.fspath(one) for one in ([given] if isinstance(given, (str, os.PathLike)) else given)]


class Result(Protocol):
    """What every command returns."""

    @property
    def exit_code(self) -> int: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def text(self) -> str: ...

    def records(self) -> Iterable[dict[str, Any]]: ...


Checkpoint = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
