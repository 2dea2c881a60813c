"""Images that cannot be read: each as a value, and their list `bad_images.jsonl` (kind, path and detail of each)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import atomic_file
from vitreous.data.source import Content, Source
from vitreous.data.transforms.decode import BadImage

NAME = "bad_images.jsonl"


def format_bad_image(error: BadImage) -> str:
    """In ASCII: the name of a file need not be valid Unicode."""
    return json.dumps({"kind": error.kind, "path": error.place, "detail": error.why}) + "\n"


def read_or_refuse(source: Source, index: int) -> Content | BadImage:
    """An item's content, or why it cannot be had."""
    try:
        return source.read(index)
    except BadImage as bad:
        return bad
    except VitreousError as error:
        place = source.place(index)
        return BadImage(place, "unreadable", one_line(error).removeprefix(f"{place}: "))


def write_bad_images(path: Path, bad: Iterable[BadImage]) -> None:
    with atomic_file(path) as part:
        part.write_text("".join(map(format_bad_image, bad)), encoding="ascii")
