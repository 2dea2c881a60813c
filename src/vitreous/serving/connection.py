"""One HTTP connection with timeouts: uvicorn itself times only connections that are idle between two requests.

Without them, a client that sends half a request or never reads its response keeps a connection, and what it holds, for ever.
A reverse proxy has finer limits (docs/how-to/serve.md); these keep the server safe without one.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitreous.serving.limits import Limits
from vitreous.serving.middleware import SECURITY_HEADERS

HEADER_SECONDS = 10.0
SPARE_SECONDS = 10.0  # beyond the application's own time limit


class Connection(H11Protocol):
    """Aborts itself when nothing has happened for too long: no request begun or completed, nothing read by the client."""

    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._last_event = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._restart_timer()
        if len(self.connections) > self._limits.connections:
            # The one that has waited longest for its client makes room; this one, where all others are being served.
            waiting = [one for one in self.connections if isinstance(one, Connection) and one._waits_for_client()]
            min(waiting, key=lambda one: one._last_event).transport.abort()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._restart_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._restart_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is refused in the same form as everything else."""
        content = json.dumps({"error": "this is not HTTP", "hint": "GET /openapi.json describes the API"}).encode()
        headers = {
            **SECURITY_HEADERS,
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            "Connection": "close",
        }
        response = h11.Response(status_code=400, headers=list(headers.items()))
        # A response to an earlier part of it may be on its way already.
        with suppress(h11.LocalProtocolError):
            for event in (response, h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _is_idle(self) -> bool:
        """Between two requests, with nothing left to send."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.get_write_buffer_size()

    def _waits_for_client(self) -> bool:
        """For a request or the rest of one; what is being computed or sent is finished."""
        return not self.transport.is_closing() and (self._is_idle() or self.conn.their_state is h11.SEND_BODY)

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = self._limits.seconds
        self._last_event = self.loop.time()
        patience = min(HEADER_SECONDS, seconds) if self._is_idle() else seconds + SPARE_SECONDS
        self._timer = self.loop.call_later(patience, self.transport.abort)
