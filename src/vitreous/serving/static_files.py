"""The pages' static files, read once: a requested name is looked up among them and never becomes a path."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class File:
    content: bytes
    media_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        """Asked for each time and sent again only if it has changed: a new version of the software shows at once."""
        headers = {"ETag": self.tag, "Cache-Control": "no-cache"}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self.tag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def file(content: bytes, media_type: str) -> File:
    return File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:20]}"')


def load_static_files() -> dict[str, File]:
    """By name, all of them and nothing else."""
    found = {}
    for entry in files("vitreous.serving").joinpath("page").iterdir():
        media_type = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_file() and media_type and not entry.name.startswith("."):
            found[entry.name] = file(entry.read_bytes(), media_type)
    return found
