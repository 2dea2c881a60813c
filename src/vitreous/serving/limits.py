"""Limits on untrusted requests: sizes, pixels, times, queue and connections."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from vitreous.core.fields import Between, check_fields

Count: TypeAlias = Annotated[int, Between(1)]


@dataclass(frozen=True)
class Limits:
    """Everything that a caller could otherwise have without end. What is beyond a limit is refused, never queued."""

    max_batch: Count = 16
    """Images that the model runs at once."""
    queue: Count = 64
    """Images that wait for the model."""
    upload_bytes: Count = 20_000_000
    """Of one image, as it is sent."""
    pixels: Count = 50_000_000
    """Of one image, as its header tells: a file of a few kilobytes can claim any size."""
    seconds: Annotated[float, Between(0.001)] = 30.0
    """From the first byte of a request to its response."""
    wait: Annotated[float, Between(0, 1)] = 0.004
    """Seconds that an image waits for company, and only if some is on its way."""
    held_bytes: Count = 512_000_000
    """Of all uploads that are not yet decoded, and of all large responses that are not yet read."""
    top: Count = 1000
    """Classes in one response."""
    connections: Count = 500
    """Open at once, idle ones too: half of the files that many systems grant a process. More get 503."""

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"limit {name}={value}:")

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
