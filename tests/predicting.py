"""Small things to predict with: a model of a few thousand weights, images, and processes that can be killed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.classifier import Classifier
from vitreous.cli import main

from conftest import random_checkpoint

NAMES = ("ant", "bee, the", 'cat "tom"')


def small_checkpoint(folder: Path, seed_image_size: int = 32) -> str:
    Classifier(
        random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=seed_image_size, classes=3, names=NAMES)
    ).save(folder / "c")
    return str(folder / "c")


def make_image(path: Path, seed: int = 0, mode: str = "RGB", size: tuple[int, int] = (40, 50), **options: object) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path, **options)  # type: ignore[arg-type]
    return path


def photographs(folder: Path, count: int) -> list[str]:
    return [str(make_image(folder / f"{number:04d}.png", number)) for number in range(count)]


@dataclass(frozen=True)
class Child:
    """The command line in a process of its own; forked, so that it starts at once."""

    process: Any
    out: Path
    err: Path

    def ended(self) -> tuple[int, str, str]:
        """Its exit code, or minus the signal it died of, and what it printed."""
        self.process.join(120)
        return self.process.exitcode, self.out.read_text(), self.err.read_text()

    def kill(self, number: int) -> tuple[int, str, str]:
        os.kill(self.process.pid, number)
        return self.ended()


_counter = itertools.count()


def command(folder: Path, *words: str, **environment: str) -> Child:
    number = next(_counter)
    out, err = folder / f"out-{number}.txt", folder / f"err-{number}.txt"

    def work() -> None:
        os.environ.update(environment)
        torch.set_num_threads(1)
        sys.stdout, sys.stderr = out.open("w"), err.open("w")
        sys.argv = ["vitreous", "predict", *words]
        code = main()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    process = multiprocessing.get_context("fork").Process(target=work)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the child uses one only
        process.start()
    return Child(process, out, err)


def together(folder: Path, *words: str, processes: int = 2) -> list[Child]:
    """What torchrun would start: processes that know of each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    common["LOCAL_WORLD_SIZE"] = str(processes)
    return [command(folder, *words, **common, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(processes)]


def wait_for_bytes(path: Path, least: int, child: Child, seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until and child.process.is_alive():
        if path.exists() and path.stat().st_size >= least:
            return True
        time.sleep(0.005)
    return False
