"""Hostile servers: whatever they answer, `fetch` gives the right bytes or one clear line, soon and without filling the disk."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzzing import LONG, SECONDS, Budget, mutate
from vitreous.core import download
from vitreous.core.errors import VitreousError

BODY = random.Random(0).randbytes(20_000)
DISK = 1 << 20  # bytes that a body of unknown length may take here

Send = Callable[[bytes], None]


class Hostile:
    """A raw server: every connection is answered by `answer`, which may send anything."""

    def __init__(self) -> None:
        self.answer: Callable[[Send], None] = lambda send: None
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.closing = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the socket was closed: the end
            while True:
                threading.Thread(target=self._serve, args=self.socket.accept()[:1], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            request = b""
            while b"\r\n\r\n" not in request:
                more = connection.recv(65_536)
                if not more:
                    return
                request += more
            self.answer(connection.sendall)

    def pause(self, seconds: float) -> None:
        if self.closing.wait(seconds):
            raise OSError("the test is over")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    monkeypatch.setattr(download, "DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(download, "UNKNOWN", DISK)
    monkeypatch.setenv("VITREOUS_TIMEOUT", "0.2")
    monkeypatch.setenv("no_proxy", "*")
    made = Hostile()
    yield made
    made.closing.set()
    made.socket.close()


def head(status: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1")


GOOD = head("200 OK", f"Content-Length: {len(BODY)}", 'ETag: "one"', "Connection: close") + BODY
CHUNKED = head("200 OK", "Transfer-Encoding: chunked")
NUMBERS = ("\xb2", "9" * 5000, "-1", "1e9", "0x10", "+5", "", "18446744073709551616", "10, 11", "999999999999999999")
STATUSES = (
    "200",
    "206 Partial",
    "204 No",
    "304 Not",
    "416 Range",
    "100 Continue",
    "101 Switch",
    "999 \x1b[31mred\x9b2J",
    "abc OK",
)
NAMES = ("Content-Length", "X-Linked-Size", "Content-Range", "ETag", "X-Linked-Etag", "x-goog-hash", "Content-Encoding",
         "Transfer-Encoding", "Last-Modified", "Set-Cookie", "Retry-After", "Location")  # fmt: skip
PLACES = ("http://[::1", "http://a..b", f"http://{'a' * 300}.com/", "http://x:99999/", "http://\x1b[2J/", "//", "file:///etc/passwd",
          "http://exa mple/", "http://\xff\xfe/", "?" * 70_000, "http://user:p@127.0.0.1:1/", "ftp://x/", "/w")  # fmt: skip


def hostile_answer(server: Hostile, rng: random.Random) -> Callable[[Send], None]:
    """One of the ways to be hostile."""
    good = mutate(GOOD, rng) if rng.random() < 0.7 else mutate(GOOD[:120], rng) + GOOD[120:]
    value = rng.choice(
        (*NUMBERS, *PLACES, "bytes 0-5/" + "9" * 5000, "bytes \xb2-5/*", 'W/"\x9b"', "gzip\x1b[31m", "chunked, gzip")
    )
    odd = head(rng.choice(STATUSES), f"{rng.choice(NAMES)}: {value}") + BODY
    redirect = head(f"30{rng.choice('12378')} \x1b[31mFound", f"Location: {rng.choice(PLACES)}")

    def forever(send: Send, opening: bytes, part: bytes, pause: float = 0.0) -> None:
        send(opening)
        for _ in range(64 if len(part) > 1000 else 2000):  # far above every limit set here
            send(part)
            if pause:
                server.pause(pause)

    return rng.choice(
        (
            *[lambda send: send(good)] * 3,
            *[lambda send: send(odd)] * 4,
            *[lambda send: send(redirect)] * 2,
            lambda send: forever(send, CHUNKED, b"10000\r\n" + bytes(65_536) + b"\r\n"),  # without an end
            lambda send: forever(
                send, head("302 Found", "Location: /w", "Transfer-Encoding: chunked"), b"1000\r\n" + bytes(4098)
            ),
            lambda send: forever(send, b"", head("100 Continue"), 0.005),
            lambda send: forever(send, b"HTTP/1.1 200 OK\r\nX: ", b"a", 0.05),  # headers that trickle
            lambda send: forever(send, GOOD[:200], b"a", 0.05),  # a body that trickles
            lambda send: forever(send, CHUNKED, b"1;" + b"x" * 2000 + b"\r\n"),
            lambda send: forever(send, b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"b" * 4000 + b"\r\n"),
            lambda send: forever(send, b"", rng.randbytes(2000)),
            lambda send: send(GOOD[: rng.randrange(len(GOOD))]),
        )
    )


def test_no_server_does_harm(server: Hostile, tmp_path: Path, rounds: Callable[[int, int], range]) -> None:
    failures = 0
    for number in rounds(15, 100):
        rng = random.Random(number)
        folder = tmp_path / str(number)
        server.answer = hostile_answer(server, rng)
        known = rng.choice((None, hashlib.sha256(BODY).hexdigest()))
        began = time.monotonic()
        with Budget():
            try:
                target = download.fetch(f"{server.url}/w", folder / "w", sha256=known)
                assert known is None or target.read_bytes() == BODY, number
            except VitreousError as error:
                failures += 1
                assert str(error).isprintable(), (number, str(error))  # which no line break is, either
                assert len(str(error)) < 1000, number
                assert not (folder / "w").exists(), number
        assert not LONG or time.monotonic() - began < SECONDS, number
        assert sum(path.stat().st_size for path in folder.rglob("*")) < DISK + 200_000, number
    assert failures  # else the servers were too kind
