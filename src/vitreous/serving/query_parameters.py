"""Query parameters, checked: a misspelt one is an error and never silently ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from starlette.requests import Request

from vitreous.core.errors import did_you_mean
from vitreous.serving.http_errors import ErrorResponse, quoted


def check_parameters(request: Request, known: Sequence[str] = ()) -> dict[str, str]:
    """The parameters of a request, each at most once."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            hint = f"{did_you_mean(name[:60], known)}it takes {', '.join(known)}" if known else "it takes none"
            raise ErrorResponse(422, f"unknown query parameter {quoted(name)}", hint)
        if name in found:
            raise ErrorResponse(422, f"query parameter {name!r} stands twice", "give it once")
        found[name] = value
    return found


def parse_integer(query: Mapping[str, str], name: str, otherwise: int, least: int, most: int) -> int:
    """A whole number in digits, from least to most."""
    text = query.get(name)
    if text is None:
        return otherwise
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise ErrorResponse(422, f"{name}={quoted(text)} is out of range", f"a whole number from {least} to {most}")
    return int(text)
