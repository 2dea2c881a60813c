"""Many clients at once on a server: `vitreous serve`, and the same model behind LitServe or a plain FastAPI handler."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vitreous.bench.models import CHECKPOINT, PHOTOGRAPHS
from vitreous.bench.race import Failed, Work

SERVERS = ("litserve", "fastapi")
SECONDS = 3.0  # of a turn
PATIENCE = 120.0  # seconds until a server must answer

# What a user of each library writes to serve timm's model.
_MODEL = """
import sys
from vitreous.bench.torchvision_import import declare_torchvision
declare_torchvision()
import timm, torch
from PIL import Image
model = timm.create_model("local-dir:" + sys.argv[1], pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
def top(images):
    with torch.inference_mode():
        return [dict(classes=best.indices.tolist(), probabilities=best.values.tolist())
                for best in (row.topk(5) for row in model(images).softmax(-1))]
"""
_FASTAPI = """
import uvicorn
from fastapi import FastAPI, UploadFile
app = FastAPI()
def predict(file: UploadFile):
    return top(transform(Image.open(file.file).convert("RGB"))[None])[0]
app.post("/predict")(predict)
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""
_LITSERVE = """
import litserve
class API(litserve.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request): return transform(Image.open(request["file"].file).convert("RGB"))
    def batch(self, inputs): return torch.stack(inputs)
    def predict(self, images): return top(images)
    def unbatch(self, output): return output
    def encode_response(self, output): return output
if __name__ == "__main__":
    server = litserve.LitServer(API(max_batch_size=16, batch_timeout=0.01), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), num_api_servers=1, log_level="warning", generate_client_file=False)
"""
_SCRIPTS = {"fastapi": _MODEL + _FASTAPI, "litserve": _MODEL + _LITSERVE}


@dataclass
class Load:
    """What the clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of responses with 200
    lasted: float = 0.0


def serving_step(work: Work, leaving: contextlib.ExitStack) -> Callable[[], float]:
    """Seconds for as many responses as there are clients."""
    folder = Path(work.folder)
    host = leaving.enter_context(_server(work, folder))
    image = min((folder / PHOTOGRAPHS).rglob("*.jpg")).read_bytes()

    def step() -> float:
        load = asyncio.run(clients(host, image, work.batch, SECONDS))
        if not load.statuses["200"]:
            raise Failed(f"responses were {dict(load.statuses)}")
        return work.batch * load.lasted / load.statuses["200"]

    return step


@contextlib.contextmanager
def _server(work: Work, folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if work.library == "vitreous":
        engine = work.engine.partition(" ")[2] or "torch"
        command = [sys.executable, "-m", "vitreous", "serve", str(folder / CHECKPOINT), "--port", port, "--engine", engine]
    else:
        script = folder / f"serve_{work.library}.py"
        script.write_text(_SCRIPTS[work.library])
        command = [sys.executable, str(script), str(folder / "timm"), port]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        _wait_for(process, f"http://127.0.0.1:{port}")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # LitServe leaves its workers behind


def _wait_for(process: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            raise Failed(f"the server ended with code {process.returncode}")
        if _responds(url):
            return
        time.sleep(0.2)
    raise Failed(f"the server did not answer within {PATIENCE:.0f} s")


def _responds(url: str) -> bool:
    """A server without a page at its root answers, too: with 404."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def make_request(host: str, image: bytes) -> bytes:
    """POST /predict with the image as multipart field `file`."""
    boundary = "vitreous-benchmark"
    body = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'.encode()
    body += image + f"\r\n--{boundary}--\r\n".encode()
    head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary={boundary}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def clients(host: str, image: bytes, count: int, seconds: float) -> Load:
    """Each keeps one connection, sends an image, waits for the response and sends again; after 503 when the server says."""
    load, request, began = Load(), make_request(host, image), time.perf_counter()
    await asyncio.gather(*(_client(host, request, began + seconds, load) for _ in range(count)))
    load.lasted = time.perf_counter() - began
    return load


async def _client(host: str, request: bytes, until: float, load: Load) -> None:
    """Bytes on a socket: the clients must cost next to nothing beside the server."""
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    try:
        while (began := time.perf_counter()) < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length
            await reader.readexactly(int(length[1]))
            status = head[9:12].decode()
            load.statuses[status] += 1
            if status == "200":
                load.seconds.append(time.perf_counter() - began)
            if wait := re.search(rb"retry-after: (\d+)", head, re.IGNORECASE):
                await asyncio.sleep(min(int(wait[1]), max(0.0, until - time.perf_counter())))
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        load.statuses[type(error).__name__] += 1
    finally:
        writer.close()
