"""Types of command-line options that several packages share; light to import, because `--help` needs them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from vitreous.data.policy import Policy


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

Changes = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE[,...]")]
"""`--set a=1,b=2 --set c=3`: one word after each `--set`, so that it never swallows DATA."""

EngineOption = Literal["torch", "eager", "compile", "onnx", "openvino", "auto"]
"""What computes a model: `eager` is another word for torch; `auto` measures."""
