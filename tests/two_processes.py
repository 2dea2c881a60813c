"""Two processes that know of each other, as torchrun would start them, forked from a test."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable

import torch


def in_two_processes(work: Callable[[int], int], patience: float = 120) -> None:
    """Each calls `work` with its number and ends with the code that it gives, which must be 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
        os._exit(work(rank))

    children = [multiprocessing.get_context("fork").Process(target=run, args=(rank,)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(patience)
        assert child.exitcode == 0
