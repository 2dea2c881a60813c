"""For fuzzers: seeded and short in `make test`, long in `make fuzz` (VITREOUS_FUZZ=long). Tests find all of it in conftest."""

from __future__ import annotations

import os
import random
import resource
import time

LONG = os.environ.get("VITREOUS_FUZZ") == "long"
SECONDS = 5.0  # no single input may take longer
MEMORY = 1 << 30  # bytes that no input may add to the peak of this process


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A damaged copy: bytes flipped, removed, repeated, overwritten, or the end cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, length = rng.randrange(len(out) or 1), rng.choice((1, 1, 4, 64, 1024))
        kind = rng.randrange(6)
        if kind == 0:
            out[at : at + length] = rng.randbytes(min(length, len(out) - at))
        elif kind == 1:
            del out[at : at + length]
        elif kind == 2:
            out[at:at] = out[at : at + length]
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            out[at : at + length] = rng.choice((b"\x00", b"\xff", b"\x7f")) * min(length, len(out) - at)
        elif out:
            out[min(at, len(out) - 1)] ^= 1 << rng.randrange(8)
    return bytes(out)


class Budget:
    """Asserts that one input took neither too long nor too much memory."""

    def __enter__(self) -> Budget:
        self.began, self.peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            took = time.process_time() - self.began
            grew = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.peak) * 1024
            assert took < SECONDS, f"took {took:.1f} s of processor time"
            assert grew < MEMORY, f"took {grew / 1e6:.0f} MB"
