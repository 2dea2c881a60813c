"""Error responses: what was wrong and what to do about it, as `error` and `hint`, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from vitreous.core.errors import VitreousError, one_line

_QUOTED = 60  # characters of the caller's that are said back


class ErrorResponse(Exception):
    """Ends a request with this answer."""

    def __init__(self, status: int, error: str, hint: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status}: {error}")
        self.status, self.error, self.hint, self.headers = status, error, hint, dict(headers or {})

    def answer(self) -> Response:
        return json_response({"error": self.error, "hint": self.hint}, self.status, self.headers)


def busy(error: str, seconds: int) -> ErrorResponse:
    return ErrorResponse(503, error, f"try again in {seconds} s", {"Retry-After": str(seconds)})


def from_input_error(error: VitreousError) -> ErrorResponse:
    """An image or model for which the request makes no sense. Our errors end with their remedy: after the semicolon."""
    what, _, remedy = one_line(error).partition("; ")
    return ErrorResponse(422, what, remedy or "send another image, or choose another model: GET /models lists them")


def quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED else text[:_QUOTED] + "...")


def json_bytes(content: Any) -> bytes:
    """In ASCII, so that no text can be one that cannot be encoded. JSON has no NaN, and a model that gives one is broken."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
    except ValueError:
        hint = "its weights are damaged or training diverged: load another checkpoint"
        raise ErrorResponse(500, "the model gives values that are not finite", hint) from None


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(content), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")
