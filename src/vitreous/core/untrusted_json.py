"""JSON from a file or a stranger: the only reader of it, with limits on size and depth.

Everything that is wrong with it is a ValueError, so that a caller has one thing to catch: text that is no JSON, bytes that are
no UTF-8, more bytes than allowed, and nesting so deep that whatever walks it later would run out of stack.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MOST = 16 << 20  # bytes; 21,843 class names are 1 MB. A byte can become 30 in memory: half a gigabyte at most
DEPTH = 128  # the files here are 4 deep; a checkpoint's parents add one for each time it was converted or fine-tuned


def parse_json(text: str | bytes, *, most: int = MOST, **options: Any) -> Any:
    """What `json.loads` makes of it."""
    if len(text) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    try:
        found = json.loads(text, **options)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level, depth = [found], 0
    while level:
        if (depth := depth + 1) > DEPTH:
            raise ValueError(_TOO_DEEP)
        insides = (value.values() if isinstance(value, dict) else value for value in level if isinstance(value, (dict, list)))
        level = [item for inside in insides for item in inside if isinstance(item, (dict, list))]
    return found


_TOO_DEEP = f"it is nested more than {DEPTH} deep"


def read_json(path: Path, *, most: int = MOST) -> Any:
    """The JSON in a UTF-8 file; an OSError if it cannot be read."""
    with path.open("rb") as file:
        return parse_json(file.read(most + 1).decode("utf-8"), most=most)
