"""Small runs for tests: a tiny ViT on the real digits, in this process or in a child that can be killed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch

import vitreous
from vitreous.cli import main
from vitreous.core.progress import silence

TINY = ("model.width=32", "model.depth=2", "model.heads=2", "model.mlp=64")
SMALL: dict[str, Any] = dict(
    data="builtin:digits", model="ViT-Ti/2", set=TINY, steps=12, batch_size=32, workers=0, eval_every=6, subset=200,
    device="cpu", precision="float32",
)  # fmt: skip


def pretrain(out: Path, **changes: Any) -> Any:
    options = {**SMALL, **changes}
    options["set"] = (*SMALL["set"], *changes.get("set", ()))
    with silence():
        return vitreous.pretrain(out=str(out), **options)


def digest(out: Path, name: str = "checkpoint/model.safetensors") -> str:
    return hashlib.sha256((out / name).read_bytes()).hexdigest()


def metrics(out: Path, split: str | None = None) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if split in (None, record["split"])]


def child(out: Path, environment: dict[str, str] | None = None, words: list[str] | None = None, **changes: Any) -> Any:
    """A process that runs `pretrain`, or the words of a command; forked, so that it starts at once."""

    def work() -> None:
        os.environ.update(environment or {})
        torch.set_num_threads(1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 2)
        try:
            if words:
                with (out.parent / f"{out.name}.said-{os.environ['RANK']}").open("w") as sys.stdout:
                    sys.argv = ["vitreous", *words]
                    code = main()
                os._exit(code)
            pretrain(out, **changes)
        except KeyboardInterrupt:
            os._exit(130)
        except vitreous.VitreousError as error:
            (out.parent / f"{out.name}.error").write_text(str(error))
            os._exit(2)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def together(out: Path, processes: int = 2, **changes: Any) -> list[Any]:
    """What torchrun would start: processes that know of each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    return [child(out, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **changes) for rank in range(processes)]


def finished(children: list[Any]) -> None:
    for process in children:
        process.join(120)
        assert process.exitcode == 0


def wait_for(found: Any, process: Any, seconds: float = 60.0) -> bool:
    """Until `found()` or the process has ended; whether it was found."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):
            if found():
                return True
        if not process.is_alive():
            return False
        time.sleep(0.005)
    raise AssertionError("waited in vain")


def states(out: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (out / "state").glob("step-*"))
