"""The server on a real socket: limits of time and connections, and a graceful shutdown."""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from small_server import loaded, model_is_busy, picture, until

from vitreous.core.errors import VitreousError
from vitreous.serving.app import build_app
from vitreous.serving.limits import Limits
from vitreous.serving.middleware import LOOPBACK
from vitreous.serving.server import BackgroundServer, bind_socket, is_loopback, url_of


@contextmanager
def serving(**limits: Any) -> Iterator[tuple[str, BackgroundServer]]:
    made = bind_socket("127.0.0.1", 0)
    app = build_app([loaded()], limits=Limits(**limits), hosts=LOOPBACK)
    server = BackgroundServer(app, made, grace=5)
    server.start()
    try:
        yield url_of("127.0.0.1", made), server
    finally:
        server.stop()
        server.wait()


def connected(url: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)
    return made


def rest_of(made: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    try:
        while chunk := made.recv(65536):
            found += chunk
    except ConnectionResetError:
        pass
    return found


def open_ones(server: BackgroundServer) -> int:
    return len(server._server.server_state.connections)


def test_an_upload_without_end_is_refused_and_then_cut_off() -> None:
    with serving(seconds=0.3) as (url, server), connected(url) as made:
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        made.sendall(head + b"{")
        found = rest_of(made)
        assert found.startswith(b"HTTP/1.1 400")
        assert b"the upload took more than 0.3 s" in found
        until(lambda: open_ones(server) == 0)
        assert server.service.pipeline.at_work == 0


def test_a_response_that_nobody_reads_does_not_stay_in_memory() -> None:
    with serving(seconds=0.3) as (url, server), connected(url) as made:
        server.service._prepared["models"] = b"x" * 20_000_000
        made.sendall(b"GET /models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: server.service.pipeline.held.held > 0)
        until(lambda: server.service.pipeline.held.held == 0)


def test_a_connection_too_many_is_answered_with_503() -> None:
    with serving(connections=3) as (url, server):
        kept = [connected(url) for _ in range(3)]
        until(lambda: open_ones(server) == 3)
        assert httpx.get(f"{url}/health").status_code == 503
        kept[0].close()
        until(lambda: open_ones(server) == 2)
        kept[1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept[1].recv(65536).startswith(b"HTTP/1.1 200")
        for made in kept:
            made.close()


SLOW = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\nabc"


def test_slow_uploads_keep_nobody_waiting() -> None:
    """Far more of them than requests that may be at work at once."""
    with serving(queue=2, max_batch=1) as (url, server):
        slow = [connected(url) for _ in range(20)]
        for made in slow:
            made.sendall(SLOW)
        until(lambda: server.service.pipeline.at_work == 20)
        answer = httpx.post(f"{url}/predict", content=picture(), headers={"Content-Type": "image/png"})
        assert answer.status_code == 200, answer.text
        for made in slow:
            made.close()


def test_requests_in_one_go_are_answered_in_their_order() -> None:
    with serving() as (url, _), connected(url) as made:
        asks = [b"GET /health", b"GET /nothing", b"HEAD /models", b"GET /health"]
        last = b"Connection: close\r\n"
        made.sendall(
            b"".join(a + b" HTTP/1.1\r\nHost: localhost\r\n" + (last if i == 3 else b"") + b"\r\n" for i, a in enumerate(asks))
        )
        found = rest_of(made)
        assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"404", b"200", b"200"]
        assert b"server:" not in found.lower()


def test_many_clients_at_once_get_their_own_answers() -> None:
    with serving() as (url, server):
        content = picture()
        with httpx.Client(base_url=url) as one:
            expected = one.post("/predict", files={"file": content}).json()["probabilities"]
            for _ in range(20):
                assert one.post("/predict", files={"file": content}).json()["probabilities"] == pytest.approx(
                    expected, abs=1e-6
                )
    # After the end: a request is counted behind its answer.
    assert server.service.metrics.requests == 21


def test_a_port_that_is_taken_or_an_address_that_is_none() -> None:
    with bind_socket("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(VitreousError, match=f"--port {port}: in use"):
            bind_socket("127.0.0.1", port)
        assert is_loopback(first)
        assert url_of("localhost", first) == f"http://localhost:{port}"
        assert url_of("0.0.0.0", first) == f"http://127.0.0.1:{port}"
        assert url_of("::", first) == f"http://[::1]:{port}"
    with pytest.raises(VitreousError, match=r"--host no\.such\.invalid"):
        bind_socket("no.such.invalid", 0)
    with bind_socket("0.0.0.0", 0) as everywhere:
        assert not is_loopback(everywhere)


def test_stopping_finishes_what_has_begun() -> None:
    made = bind_socket("127.0.0.1", 0)
    server = BackgroundServer(build_app([loaded()]), made, grace=20)
    server.start()
    content = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + picture() + b"\r\n--x--\r\n"
    head = (
        f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: {len(content)}"
    )
    url = url_of("127.0.0.1", made)
    with connected(url) as slow:
        slow.sendall(head.encode() + b"\r\n\r\n" + content[:100])
        until(lambda: server.service.pipeline.at_work == 1)
        server.stop()
        until(lambda: server.service.stopping)
        answer = httpx.get(f"{url}/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "stopping")
        assert httpx.post(f"{url}/predict", files={"file": picture()}).status_code == 503
        slow.sendall(content[100:])
        assert rest_of(slow).startswith(b"HTTP/1.1 200")
    server.wait()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


@pytest.mark.parametrize("patient", [True, False])
def test_the_end_waits_for_the_models_thread_though_nobody_waits_for_its_answer(patient: bool) -> None:
    """A program that ends while torch is at work in another thread ends in a crash."""
    made, model = bind_socket("127.0.0.1", 0), loaded()
    server = BackgroundServer(build_app([model]), made, grace=20 if patient else 0.1)
    server.start()
    with ThreadPoolExecutor(1) as pool:
        with model_is_busy(model):
            with connected(url_of("127.0.0.1", made)) as leaving:
                content = json.dumps({"image": base64.b64encode(picture()).decode()})
                head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
                leaving.sendall(f"POST /predict HTTP/1.1\r\n{head}{content}".encode())
                until(lambda: server.service.pipeline.batcher.running == 1)
            until(lambda: server.service.pipeline.at_work == 0)
            server.stop()
            ending = pool.submit(server.wait)
            if patient:
                until(lambda: server.service.pipeline.batcher._thread._shutdown)  # it takes nothing more
                assert not ending.done()
            else:
                assert ending.result(20) is False
        assert ending.result(20) is patient


def test_stopping_does_not_wait_for_ever() -> None:
    made = bind_socket("127.0.0.1", 0)
    server = BackgroundServer(build_app([loaded()]), made, grace=0.2)
    server._server.config.timeout_graceful_shutdown = 1
    server.start()
    with connected(url_of("127.0.0.1", made)) as slow:
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n")
        until(lambda: server.service.pipeline.at_work == 1)
        began = time.monotonic()
        server.stop()
        server.wait()
        assert time.monotonic() - began < 20
