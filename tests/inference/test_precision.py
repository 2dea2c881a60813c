"""Of several processes each finds out for itself what its processor needs, and all do as the first."""

from __future__ import annotations

import pytest
import torch

from vitreous.core.device import Precision
from vitreous.core.distributed import World
from vitreous.inference import precision as module
from vitreous.inference.precision import agreed_precision


@pytest.mark.parametrize(("first", "tried"), [("bfloat16", ["auto"]), ("float32", ["auto", "float32"])])
def test_the_second_process(monkeypatch: pytest.MonkeyPatch, first: str, tried: list[str]) -> None:
    """It has found bfloat16 fast. Without a trial of its own it would not know of a limit that it needs."""
    seen: list[str] = []

    def choose(wanted: str, device: str) -> Precision:
        seen.append(wanted)
        return Precision("bfloat16" if wanted == "auto" else wanted, device)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "choose_precision", choose)
    monkeypatch.setattr(module, "broadcast", lambda world, value: first)
    found = agreed_precision("auto", World(1, 2, torch.device("cpu")))
    assert (found, seen) == (Precision(first, "cpu"), tried)  # type: ignore[arg-type]
