"""Limits on untrusted requests: sizes, pixels, times, queue and connections."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from vitreous.core.errors import VitreousError


@dataclass(frozen=True)
class Limits:
    """Everything that a caller could otherwise have without end. What is beyond a limit is refused, never queued."""

    max_batch: int = 16
    """Images that the model runs at once."""
    queue: int = 64
    """Images that wait for the model."""
    upload_bytes: int = 20_000_000
    """Of one image, as it is sent."""
    pixels: int = 50_000_000
    """Of one image, as its header tells: a file of a few kilobytes can claim any size."""
    seconds: float = 30.0
    """From the first byte of a request to its answer."""
    wait: float = 0.004
    """Seconds that an image waits for company, and only if some is on its way."""
    held_bytes: int = 512_000_000
    """Of all uploads that are not yet decoded, and of all large answers that are not yet read."""
    top: int = 1000
    """Classes in one answer."""
    connections: int = 500
    """Open at once, idle ones too: half of the files that many systems grant a process. More get 503."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "queue", "upload_bytes", "pixels", "held_bytes", "top", "connections"):
            if getattr(self, name) < 1:
                raise VitreousError(f"limit {name}={getattr(self, name)}: must be at least 1")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise VitreousError(f"limit seconds={self.seconds}: must be a positive number")
        if not 0 <= self.wait <= 1:
            raise VitreousError(f"limit wait={self.wait}: must be from 0 to 1 second")

    @property
    def admitted(self) -> int:
        """Requests whose image has arrived that are at work at once: those that wait and those that the model runs."""
        return self.queue + self.max_batch

    @property
    def held(self) -> int:
        return max(self.held_bytes, 2 * self.upload_bytes)

    @property
    def decoders(self) -> int:
        """Threads that decode. Few: each may hold an image of `pixels` several times over while it converts it."""
        return max(2, min(4, os.cpu_count() or 2))
