"""From the body of a request to the bytes of one image. Nothing is opened on the caller's behalf: no URL, no path.

A body is the image itself (`image/*`), a form (`multipart/form-data`) whose field `file` is the image, or JSON
`{"image": base64}`. It is counted and timed while it comes, whatever its header claims, and kept in memory: no file is written.
400 means that the request is not formed like that, 413 that it is too large, 415 that it is of another type.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import File, FormParser, parse_options_header
from starlette.requests import Request

from vitreous.core.untrusted_json import parse_json
from vitreous.serving.byte_budget import Account
from vitreous.serving.http_errors import ErrorResponse, quoted
from vitreous.serving.limits import Limits

FORM, JSON, IMAGE = "multipart/form-data", "application/json", "image/"
Kind = Literal["form", "json", "image"]
FIELD, KEY = "file", "image"
AROUND = 65_536  # bytes of a body that may be something else than the image: headers of parts, quotes
_PLACES = ("url", "uri", "path", "href", "link", "image_url", "src")
_PLACE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]{1,20}:/|www\.|~|\.{0,2}/|[a-z]:[\\/]|\\\\)", re.IGNORECASE)
_SEND = f"send the image's bytes: as the body (image/*), in a form's field {FIELD!r}, or as base64 under {KEY!r} in JSON"


@dataclass(frozen=True)
class Body:
    """A request's body, whole and unread."""

    kind: Kind
    boundary: bytes
    content: bytes = field(repr=False)


async def receive_body(request: Request, limits: Limits, account: Account) -> Body:
    """The body, as far as the limits go."""
    kind, boundary = _kind(request)
    # Base64 makes four bytes of three, and some programs break it into lines.
    most = AROUND + (limits.upload_bytes * 7 // 5 if kind == "json" else limits.upload_bytes)
    if (claimed := _claimed(request)) > most:
        raise _too_large(limits)
    account.check(claimed)
    content = bytearray()
    async for chunk in request.stream():
        if len(content) + len(chunk) > most:
            raise _too_large(limits)
        account.take(len(chunk))
        content += chunk
    return Body(kind, boundary, bytes(content))


def image_in(body: Body, limits: Limits) -> bytes:
    """The bytes of the image. Takes a while for a large body: not for the event loop."""
    if body.kind == "json":
        content = _from_json(body.content)
    else:
        content = _from_form(body.content, body.boundary) if body.kind == "form" else body.content
        refuse_place(content[:300].decode("latin-1"))
    if len(content) > limits.upload_bytes:
        raise _too_large(limits)
    if not content:
        raise ErrorResponse(422, "the image is empty: 0 bytes", _SEND)
    return content


def refuse_place(text: str) -> None:
    if _PLACE.match(text):
        raise ErrorResponse(400, "a URL or path is refused", f"nothing is opened on a caller's behalf; {_SEND}")


def _kind(request: Request) -> tuple[Kind, bytes]:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ErrorResponse(
            415, "a compressed body is refused", "send it without Content-Encoding; images are compressed already"
        )
    given = request.headers.get("content-type", "")
    media_type, options = parse_options_header(given)
    media_type = media_type.lower()
    if media_type == FORM.encode():
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise ErrorResponse(400, "a form without a boundary", f"let your HTTP library set Content-Type; {_SEND}")
        return "form", boundary
    if media_type == JSON.encode():
        return "json", b""
    if media_type.startswith(IMAGE.encode()):  # of which format, its own bytes say
        return "image", b""
    what = f"content type {quoted(given)}" if given else "a body without a content type"
    raise ErrorResponse(415, f"{what} is not supported", _SEND)


def _claimed(request: Request) -> int:
    """By its header; 0 where there is none: chunks are counted as they come."""
    given = request.headers.get("content-length", "0")
    if not re.fullmatch(r"[0-9]{1,18}", given):
        raise ErrorResponse(400, f"Content-Length {quoted(given)} is not a number of bytes", "let your HTTP library set it")
    return int(given)


def _too_large(limits: Limits) -> ErrorResponse:
    return ErrorResponse(
        413,
        f"the image has more than {limits.upload_bytes / 1e6:g} MB",
        "make it smaller: the model reads it at the image_size of GET /models (the server's limit is --upload-mb)",
    )


# A form -----------------------------------------------------------------------------------------------------------------------


def _from_form(body: bytes, boundary: bytes) -> bytes:
    parts: list[Any] = []
    ends: list[bool] = []

    def add(part: Any) -> None:
        _check_name((part.field_name or b"").decode("utf-8", "replace"), FIELD, "field")
        if parts:
            raise ErrorResponse(400, "several images in the form", "requests at the same time are run together")
        parts.append(part)

    # In memory whatever its size: by default the parser writes what is larger than a megabyte to a file.
    config = {"MAX_MEMORY_FILE_SIZE": len(body)}
    try:
        FormParser(FORM, add, add, lambda: ends.append(True), boundary, config=config).write(body)
    except FormParserError:
        raise ErrorResponse(400, "the form cannot be read", f"let your HTTP library write it; {_SEND}") from None
    if not ends:
        raise ErrorResponse(400, "the form ends before its last boundary", "it was truncated on the way; send it again")
    if not parts:
        raise ErrorResponse(400, f"no field {FIELD!r} in the form", _SEND)
    part = parts[0]
    if not isinstance(part, File):  # a part without a file name
        return bytes(part.value or b"")
    part.file_object.seek(0)
    return part.file_object.read()


def _check_name(name: str, expected: str, what: str) -> None:
    if name.lower() in _PLACES:
        raise ErrorResponse(
            400, f"{what} {quoted(name)}: a URL or path is refused", f"nothing is opened on a caller's behalf; {_SEND}"
        )
    if name != expected:
        raise ErrorResponse(400, f"unknown {what} {quoted(name)}", f"the image's {what} is called {expected!r}; {_SEND}")


# JSON -------------------------------------------------------------------------------------------------------------------------


def _from_json(body: bytes) -> bytes:
    try:
        found = parse_json(body, most=len(body), object_pairs_hook=_once)
    except ValueError:
        raise ErrorResponse(400, "the body is not JSON", _SEND) from None
    if not isinstance(found, dict):
        raise ErrorResponse(400, "the body is JSON, but not an object", f'{_SEND}: {{"{KEY}": "..."}}')
    for name in found:
        _check_name(name, KEY, "key")
    if KEY not in found:
        raise ErrorResponse(400, f"no key {KEY!r} in the body", _SEND)
    text = found[KEY]
    if not isinstance(text, str):
        raise ErrorResponse(400, f"{KEY!r} is not a string", "it is the base64 of the image's bytes")
    return _from_base64(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ErrorResponse(400, "a key stands twice in the body", "one request has one image")
    return found


def _from_base64(text: str) -> bytes:
    if text[:5].lower() == "data:":  # what a browser's FileReader gives
        kind, comma, text = text.partition(",")
        if not comma or not kind.lower().endswith(";base64"):
            raise ErrorResponse(400, "a data: URI that is not base64", "write data:image/png;base64,... or the base64 alone")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):  # the latter for letters beyond ASCII
        refuse_place(text[:300])  # only now: the base64 of a JPEG begins with a slash
        raise ErrorResponse(
            400, f"{KEY!r} is not base64", "encode the image's bytes with the standard alphabet, padding included"
        ) from None
