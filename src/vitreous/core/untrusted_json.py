"""JSON: read with limits on size and depth because it is untrusted input, written without NaN and infinity.

Everything that is wrong with JSON that is read is a ValueError, so that a caller has one thing to catch: text that is not
JSON, bytes that are not UTF-8, more bytes than allowed, and nesting so deep that whatever walks it later would overflow the
stack.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

# Bytes. 21,843 class names are 1 MB; a byte can become 30 in memory, so this is half a gigabyte at most.
MOST = 16 << 20
# The files here are 4 deep; a checkpoint's parents add one for each time it was converted or fine-tuned.
DEPTH = 128
_TOO_DEEP = f"it is nested more than {DEPTH} deep"


def parse_json(text: str | bytes, *, most: int = MOST, **options: Any) -> Any:
    """The value, as `json.loads` returns it."""
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


def read_json(path: Path, *, most: int = MOST) -> Any:
    """The JSON in a UTF-8 file; an OSError if it cannot be read."""
    with path.open("rb") as file:
        return parse_json(file.read(most + 1).decode("utf-8"), most=most)


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none, or something else."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def without_nan(value: Any) -> Any:
    """The value with null for every NaN and infinity, which a broken model gives and JSON does not have."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_line(value: Any, encoding: str = "utf-8") -> str:
    """JSON on one line, harmless on a terminal: letters as they are where `encoding` has them, all else as escapes."""
    text = json.dumps(without_nan(value), ensure_ascii=False, allow_nan=False)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # a terminal that knows few letters
        text = json.dumps(without_nan(value), allow_nan=False)
    return text
