"""Types of arguments that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Protocol

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from vitreous.data.policy import Policy


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


def _parse_size(words: list[str]) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:[,x](\d+))?", words[0])
    if not match:
        raise ValueError(f"{words[0]!r} is neither one number, as 384, nor height,width, as 224,320")
    return int(match[1]), int(match[2] or match[1])


ImageSize = Annotated[
    tuple[int, int] | None,  # both in one, or tyro would try each by itself and speak of its inner workings
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="N|H,W",
        instance_from_str=_parse_size,
        is_instance=lambda value: value is None or isinstance(value, tuple),
        str_from_instance=lambda size: ["as it is"] if size is None else [f"{size[0]},{size[1]}"],
    ),
]
"""`384`, or `224,320` for height and width."""

BadImages = Annotated[
    Policy,
    tyro.conf.arg(
        help="images that cannot be read: stop and name them, or skip them, count and list them. Default: stop.",
        help_behavior_hint="",
    ),
]
"""Stop wherever a number comes of the images: it would silently be one of other images. `predict` gives each its row."""

Checkpoint = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]

Changes = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE[,...]")]
"""`--set a=1,b=2 --set c=3`: one word after each `--set`, so that it never swallows DATA."""
