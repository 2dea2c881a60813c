"""An HTTP server for tests that answers each path with scripted steps: truncated, stalled, changed, refused."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Callable
from typing import Any

BODY = bytes(range(256)) * 2000  # half a megabyte, and no two places alike within a page
HALF = len(BODY) // 2

Step = Callable[["Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each path with its next scripted step; the last one stays."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers.items())))
        steps = self.server.scripts.get(self.path, [status(404)])
        with contextlib.suppress(ConnectionError):
            (steps.pop(0) if len(steps) > 1 else steps[0])(self)

    def log_message(self, *_: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scripts: dict[str, list[Step]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        pass

    def headers_of(self, number: int) -> dict[str, str]:
        return self.requests[number][1]

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


def ok(
    body: bytes = BODY,
    *,
    etag: str | None = '"one"',
    ranges: bool = True,
    heed_if_range: bool = True,
    sent: int | None = None,
    then: Callable[[Handler], object] | None = None,
    **headers: str,
) -> Step:
    """Serve a body, or only its first `sent` bytes under the full Content-Length; `then` happens before hanging up."""

    def step(handler: Handler) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        same = not heed_if_range or handler.headers.get("If-Range") == etag
        start = int(asked[1]) if asked and ranges and same else 0
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(body) - start))
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if etag:
            handler.send_header("ETag", etag)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body[start:] if sent is None else body[start:sent])
        if then:
            handler.wfile.flush()
            then(handler)

    return step


def status(code: int, **headers: str) -> Step:
    def step(handler: Handler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return step


def stall(handler: Handler) -> object:
    return handler.server.closing.wait(10)


def never(handler: Handler) -> None:
    stall(handler)


def hang_up(handler: Handler) -> None:
    """Close without a word."""
