"""The list of images that could not be read: `bad_images.jsonl`, one object a line with kind, path and detail."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from vitreous.core.files import atomic_file
from vitreous.data.transforms.decode import BadImage

NAME = "bad_images.jsonl"


def format_bad_image(error: BadImage) -> str:
    """In ASCII: the name of a file need not be valid Unicode."""
    return json.dumps({"kind": error.kind, "path": error.place, "detail": error.why}) + "\n"


def write_bad_images(path: Path, bad: Iterable[BadImage]) -> None:
    with atomic_file(path) as part:
        part.write_text("".join(map(format_bad_image, bad)), encoding="ascii")
