"""The command: it says where it listens when it does, ends as it should, and what is wrong is said before a model is loaded."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import vitreous
from predicting import make_image, small_checkpoint
from vitreous.classifier import load
from vitreous.cli import main
from vitreous.core.errors import VitreousError


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@dataclass(frozen=True)
class Command:
    """`vitreous serve` in a process of its own, with what it says in files."""

    process: Any
    out: Path
    err: Path

    def said(self) -> str:
        """The first line, when it is there."""
        end = time.monotonic() + 120
        while "\n" not in (text := self.out.read_text()):
            assert self.process.is_alive(), self.err.read_text()
            assert time.monotonic() < end
            time.sleep(0.01)
        return text.splitlines()[0]

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> tuple[int, str, str]:
        self.process.join(60)
        return self.process.exitcode, self.out.read_text(), self.err.read_text()


@contextmanager
def started(folder: Path, *words: str) -> Iterator[Command]:
    """Forked, so that it starts at once."""
    out, err = folder / "out.txt", folder / "err.txt"
    out.touch()

    def work() -> None:
        torch.set_num_threads(1)
        for stream, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        sys.argv = ["vitreous", "serve", *words, "--port", "0"]
        code = main()
        sys.stdout.flush()
        os._exit(code)

    process = multiprocessing.get_context("fork").Process(target=work)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        process.start()
    try:
        yield Command(process, out, err)
    finally:
        process.kill()
        process.join()


def data(folder: Path) -> Path:
    """Images to show as examples; those that come with the software take longer to draw."""
    for number, name in enumerate(("ant/1", "ant/2", "bee/1")):
        make_image(folder / "data" / f"{name}.png", number)
    return folder / "data"


def half_sent(url: str, content: bytes) -> tuple[socket.socket, bytes]:
    """A request in flight: half of an upload, and the other half."""
    body = json.dumps({"image": base64.b64encode(content).decode()}).encode()
    host = url.removeprefix("http://")
    head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    made = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60)
    made.sendall(head.encode() + body[:50])
    return made, body[50:]


def at_work(url: str) -> bool:
    return "vitreous_requests_at_work 1" in httpx.get(f"{url}/metrics").text


forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@forking
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_what_is_in_flight_be_answered(checkpoint: str, tmp_path: Path, number: int, code: int) -> None:
    content = make_image(tmp_path / "a.png").read_bytes()
    expected = load(checkpoint).predict(str(tmp_path / "a.png"))
    with started(tmp_path, checkpoint, "--examples", str(data(tmp_path))) as command:
        line = command.said()
        assert line.startswith("serving c at http://127.0.0.1:")
        assert line.endswith(" (Ctrl-C ends it)")
        url = line.split()[3]
        made, rest = half_sent(url, content)
        with made:
            while not at_work(url):
                pass
            command.signal(number)
            while (health := httpx.get(f"{url}/health")).status_code == 200:
                pass
            assert (health.status_code, health.json()["status"]) == (503, "stopping")
            made.sendall(rest)
            answer = b""
            while chunk := made.recv(65536):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 200")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["classes"] == list(expected.classes)
        found, out, err = command.ended()
        assert found == code
        assert out.splitlines()[1].endswith("requests and 1 images")
        assert err == f"note: c: preprocessing {load(checkpoint).preprocess}\n"


@forking
def test_a_second_signal_ends_it_at_once_and_json_tells_the_address(checkpoint: str, tmp_path: Path) -> None:
    with started(tmp_path, checkpoint, "--json", "--timeout", "600", "--examples", str(data(tmp_path))) as command:
        record = json.loads(command.said())
        assert record["state"] == "serving"
        assert record["models"] == ["c"]
        made, _ = half_sent(record["url"], make_image(tmp_path / "a.png").read_bytes())
        with made:
            while not at_work(record["url"]):
                pass
            command.signal(signal.SIGTERM)
            while httpx.get(f"{record['url']}/health").status_code == 200:
                pass
            command.signal(signal.SIGTERM)
            code, out, err = command.ended()
        assert code == 143
        assert record["preprocess"] == [str(load(checkpoint).preprocess)]
        assert (len(out.splitlines()), err) == (1, f"note: c: preprocessing {record['preprocess'][0]}\n")


def test_a_process_of_its_own_from_the_command_line(tmp_path: Path) -> None:
    """Without a model, which would take longer to import than all the rest: the runs of a folder."""
    command = [sys.executable, "-m", "vitreous", "serve", "--runs", str(tmp_path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        record = json.loads(process.stdout.readline())
        assert httpx.get(f"{record['url']}/runs").json() == {"runs": [], "left_out": 0}
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "")
    assert json.loads(out)["state"] == "ended"


def test_in_python_it_serves_inside_a_with(checkpoint: str, tmp_path: Path) -> None:
    make_image(tmp_path / "a.png")
    expected = load(checkpoint).predict(str(tmp_path / "a.png"), top=2)
    runs = tmp_path / "runs"
    runs.mkdir()
    with vitreous.serve(checkpoint, port=0, runs=str(runs), examples=str(data(tmp_path))) as server:
        with (tmp_path / "a.png").open("rb") as file:
            found = httpx.post(f"{server.url}/predict?top=2", files={"file": file}).json()
        assert found["classes"] == list(expected.classes)
        assert found["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)
        about = httpx.get(f"{server.url}/models").json()
        assert [one["name"] for one in about["examples"]] == ["ant", "ant-2", "bee"]
        assert httpx.get(server.url + about["examples"][0]["url"]).headers["content-type"].startswith("image/")
        assert httpx.get(f"{server.url}/health", headers={"Host": "evil.example"}).status_code == 403
        assert httpx.get(f"{server.url}/runs").json()["runs"] == []
    assert server.models == ("c",)
    assert server.exit_code == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def test_runs_alone_can_be_served(tmp_path: Path) -> None:
    with vitreous.serve(port=0, runs=str(tmp_path)) as server:
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok", "models": 0, "queue": 0}
        assert httpx.post(f"{server.url}/predict", files={"file": b"x"}).status_code == 404
    lines = vitreous.serve(port=0, runs=str(tmp_path)).lines()
    assert next(lines).startswith(f"serving the runs in {tmp_path} at http://127.0.0.1:")
    lines.close()


def test_a_port_in_use_is_said_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "no-such-checkpoint", "--port", str(port)]) == 2
    assert f"--port {port}: in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (dict(), "nothing to serve"),
        (dict(checkpoints=["no/such"]), "no/such"),
        (dict(runs="no/such"), "--runs no/such"),
        (dict(examples="builtin:shapes", runs="."), "--examples"),
        (dict(checkpoints="x", port=70_000), "--port 70000"),
        (dict(checkpoints="x", queue=0), "--queue 0"),
        (dict(checkpoints="x", max_batch=0), "--max-batch 0"),
        (dict(checkpoints="x", timeout=0), "--timeout 0"),
        (dict(checkpoints="x", upload_mb=-1), "--upload-mb -1"),
        (dict(checkpoints="x", max_pixels=float("nan")), "--max-pixels nan"),
        (dict(checkpoints="x", host="no.such.invalid"), "--host no.such.invalid"),
        (dict(checkpoints="x", device="abacus"), "--device abacus"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], word: str) -> None:
    with pytest.raises(VitreousError) as error:
        vitreous.serve(**{"port": 0, **options})
    assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    right = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "uvicorn" else right(name, *rest))
    with pytest.raises(VitreousError, match=r'pip install "vitreous\[serve\]"'):
        vitreous.serve("x", port=0)


def test_listening_to_everybody_is_said(tmp_path: Path) -> None:
    server = vitreous.serve(runs=str(tmp_path), host="0.0.0.0", port=0)
    assert any("anyone who can reach this machine" in note for note in server.notes)
    with server:
        assert httpx.get(f"{server.url}/health", headers={"Host": "models.example"}).status_code == 200
    assert not vitreous.serve(runs=str(tmp_path), port=0).notes
