"""Checks and headers of every request and response: origin and host, time limit, security headers, error responses.

- Security headers on all responses, errors too. They let a page of this server load nothing but files of this server.
- An unexpected error gives 500 and a reference; what happened is in the server's log under the same reference.
- On loopback, only names of this machine are accepted as Host: a page elsewhere could otherwise point a name of its own at
  127.0.0.1 and read the responses (DNS rebinding). And a POST with the Origin of another page is refused on any address.
- While the server is stopping, only /health and /metrics respond; what had begun is finished.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.serving.http_errors import ErrorResponse, busy, quoted
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import Metrics

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
OTHER = "other"  # in the metrics, for whatever address there is no route to
_SPARE = 5.0  # seconds after which a request ends that should have ended itself
_ALWAYS = ("/health", "/metrics")

_log = logging.getLogger("vitreous.serving")


class GuardMiddleware:
    """Around the application. `hosts` are the names that it accepts, None for any."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        metrics: Metrics,
        hosts: Collection[str] | None,
        stopping: Callable[[], bool],
        routes: Mapping[Any, str],
    ) -> None:
        self.app, self.limits, self.metrics, self.stopping, self.routes = app, limits, metrics, stopping, routes
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, started = time.perf_counter(), 0, False

        async def guarded(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                if self.stopping():
                    headers["Connection"] = "close"
            elif scope["method"] == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            answer = await self._answer(scope, receive, guarded)
            if answer is not None and not started:
                await answer(scope, receive, guarded)
        finally:
            if status:
                route = self.routes.get(scope.get("endpoint"), OTHER)
                self.metrics.answered(route, status, time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """None where the application has answered."""
        try:
            self._check(scope["method"], scope["path"], Headers(scope=scope))
            async with asyncio.timeout(self.limits.seconds + _SPARE) as patience:

                async def begun(message: Message) -> None:
                    if not patience.expired():
                        # A client that does not read its response must not keep it in memory forever.
                        patience.reschedule(asyncio.get_running_loop().time() + self.limits.seconds)
                    await send(message)

                await self.app(scope, receive, begun)
        except ErrorResponse as refusal:
            return refusal.answer()
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it; in the metrics it is what nginx writes, too
        except TimeoutError:
            return busy("it took too long", 5).answer()
        except Exception:
            reference = secrets.token_hex(4)
            _log.exception(
                "%s %s failed (reference %s)", scope["method"], self.routes.get(scope.get("endpoint"), OTHER), reference
            )
            hint = f"this is a fault of the server; its log says more under reference {reference}"
            return ErrorResponse(500, "something went wrong inside the server", hint).answer()
        return None

    def _check(self, method: str, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            raise ErrorResponse(
                403,
                f"host {quoted(host)} is not a name of this server",
                f"address it as {' or '.join(sorted(self.hosts))}; started with --host it listens elsewhere too",
            )
        origin = headers.get("origin")
        if method not in ("GET", "HEAD") and origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise ErrorResponse(
                403,
                f"a page of another origin ({quoted(origin)}) may not use this server",
                "use its own page, or a program, which sends no Origin",
            )
        if self.stopping() and path not in _ALWAYS:
            raise busy("the server is stopping", 5)


def _name(host: str) -> str:
    """A Host header without its port; an address of IPv6 keeps its brackets."""
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".").lower()
