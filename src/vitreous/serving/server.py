"""The application on a socket in a background thread, with a graceful shutdown."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import sys
import threading
import time
import warnings

import uvicorn
from starlette.applications import Starlette

from vitreous.core.errors import VitreousError
from vitreous.serving.app import Service

ALL_ADDRESSES = ("0.0.0.0", "::")  # every address of the machine
_TICK = 0.05  # seconds between looks at what is still at work


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket of our own, not listening yet: whether it can be had is known before a model is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise VitreousError(
            f"--host {host}: no such address ({getattr(error, 'strerror', None) or error}); try 127.0.0.1"
        ) from None
    made = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # there it would let two programs have one port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        causes = {
            errno.EADDRINUSE: f"--port {port}: in use by another program; choose another, or 0 for any that is free",
            errno.EACCES: f"--port {port}: not allowed to use it; choose one above 1023",
        }
        other = f"--host {host}: cannot listen there ({error.strerror or error}); try 127.0.0.1"
        raise VitreousError(causes.get(error.errno or 0, other)) from None
    return made


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def url_of(host: str, listening: socket.socket) -> str:
    """An address that a browser on this machine can open."""
    port = listening.getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


class _Server(uvicorn.Server):
    """Stops in two steps: first nothing new is taken and what has begun is finished, then the socket is closed.

    Meanwhile the address is still there and /health says `stopping`, so that load balancers learn of it.
    """

    def __init__(self, config: uvicorn.Config, service: Service, grace: float) -> None:
        super().__init__(config)
        self.service, self.grace = service, grace
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.stopping = True
        until = time.monotonic() + self.grace
        while self.service.pipeline.at_work and time.monotonic() < until:
            await asyncio.sleep(_TICK)
        await super().shutdown(sockets)


class BackgroundServer:
    """A server in a thread of its own."""

    def __init__(self, app: Starlette, listening: socket.socket, grace: float | None = None) -> None:
        self.service: Service = app.state.service
        limits = self.service.limits
        self.grace = limits.seconds + 5 if grace is None else grace
        self._socket = listening
        for noisy in ("uvicorn.error", "python_multipart"):  # they log every client that speaks no HTTP
            logging.getLogger(noisy).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=r"PIL\.")  # of broken images; Python would remember every one forever
        config = uvicorn.Config(
            app,
            loop="asyncio",  # no extra of uvicorn is needed, and none is used that happens to be there
            http="h11",
            ws="none",
            workers=1,  # whatever the environment says
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=64 * 1024,
        )
        self._server = _Server(config, self.service, self.grace)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="vitreous-serve", daemon=True)

    def start(self) -> None:
        """Returns when it accepts requests."""
        self._thread.start()
        while not self._server.listening.wait(_TICK):
            if not self._thread.is_alive():
                raise VitreousError(f"the server could not be started ({self._error or 'it ended at once'})")

    def stop(self) -> None:
        """Begins the end: what is at work is finished, within the grace."""
        self._server.should_exit = True

    def wait(self) -> bool:
        """Until it has ended. Whether the model's thread has, too: its batch is finished even when the clients have left."""
        while self._thread.is_alive():
            self._thread.join(_TICK)  # in steps: on some systems a join without a timeout lets no signal through
        ended = self.service.close(self.grace)
        if self._error is not None:
            raise self._error
        return ended

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:  # uvicorn leaves by SystemExit where it cannot listen
            self._error = error
        finally:
            self._socket.close()
