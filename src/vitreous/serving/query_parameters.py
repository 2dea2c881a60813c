"""Query parameters, checked: a misspelt one is an error and never silently ignored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from starlette.requests import Request

from vitreous.core.errors import did_you_mean
from vitreous.serving.http_errors import ErrorResponse, quoted


def check_parameters(request: Request, known: Sequence[str]) -> None:
    """Each parameter of a request is known, and given once."""
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            hint = f"{did_you_mean(name[:60], known)}it takes {', '.join(known)}" if known else "it takes none"
            raise ErrorResponse(422, f"unknown query parameter {quoted(name)}", hint)
        if times > 1:
            raise ErrorResponse(422, f"query parameter {name!r} stands twice", "give it once")


def parse_integer(query: Mapping[str, str], name: str, otherwise: int, least: int, most: int) -> int:
    """A whole number in digits, from least to most."""
    text = query.get(name)
    if text is None:
        return otherwise
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise ErrorResponse(422, f"{name}={quoted(text)} is out of range", f"a whole number from {least} to {most}")
    return int(text)
