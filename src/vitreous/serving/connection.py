"""One connection, with a limit to its patience. uvicorn times only connections that rest between two requests.

Without this, whoever sends half a request, or never reads the answer, keeps a connection and what it holds for ever:

    headers     must be whole so long after the first byte, or after the connection was made
    exchange    from the headers to the answer; a long answer may take longer, as long as it is read
    flushing    what is left of the answer must flow, and what is left of a refused upload must end

Where there are as many connections as may be, a new one takes the place of the one that has waited longest for its client.
And what is not HTTP at all is refused in the same form as everything else.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitreous.serving.limits import Limits
from vitreous.serving.middleware import SECURITY

HEADERS = 10.0  # seconds
SPARE = 10.0  # seconds more than the application takes at most


class Connection(H11Protocol):
    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._stage = ""
        self._moved = 0.0  # when the other side last read something
        self._entered = 0.0  # when the stage began

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._enter("headers", min(HEADERS, self._limits.seconds))
        if len(self.connections) > self._limits.connections:
            waiting = [one for one in self.connections if isinstance(one, Connection) and one._waits_for_client()]
            min(waiting, key=lambda one: one._entered).transport.abort()  # this one, where all others are served

    def _waits_for_client(self) -> bool:
        """For a request or the rest of one; what is being computed or sent is finished."""
        idle = self.cycle is None or (self.cycle.response_complete and not self.transport.get_write_buffer_size())
        return not self.transport.is_closing() and (idle or self.conn.their_state is h11.SEND_BODY)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._exchange()
        elif (before is None or before.response_complete) and self.conn.their_state is h11.IDLE and self._stage != "headers":
            self._enter("headers", min(HEADERS, self._limits.seconds))

    def on_response_complete(self) -> None:
        before = self.cycle
        self._enter("flushing", self._limits.seconds)
        super().on_response_complete()
        if self.cycle is not before:  # the next request had come already
            self._exchange()

    def resume_writing(self) -> None:
        self._moved = self.loop.time()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        content = json.dumps({"error": "this is not HTTP", "hint": "GET /openapi.json describes the API"}).encode()
        headers = {**SECURITY, "Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"}
        try:
            for event in (
                h11.Response(status_code=400, headers=list(headers.items())),
                h11.Data(data=content),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer to an earlier part of it is on its way
            pass
        self.transport.close()

    def _exchange(self) -> None:
        self._enter("exchange", self._limits.seconds + SPARE)

    def _enter(self, stage: str, seconds: float) -> None:
        self._leave()
        self._stage, self._entered = stage, self.loop.time()
        self._timer = self.loop.call_later(seconds, self._over)

    def _leave(self) -> None:
        self._stage = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        answering = self.cycle is not None and self.cycle.response_started
        uploading = self._stage == "flushing" and self.conn.their_state is h11.SEND_BODY
        if self._stage == "flushing" and not uploading and not self.transport.get_write_buffer_size():
            self._leave()  # at rest: uvicorn times that
        elif answering and not uploading and self.loop.time() - self._moved < self._limits.seconds:
            self._enter(self._stage, self._limits.seconds)
        else:
            self._leave()
            self.transport.abort()
