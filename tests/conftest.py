"""Shared by all tests: quiet peers, small threads, and the reference fixtures."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from browser import launched
from fuzzing import LONG, Budget, mutate

# Tests compare bytes between processes, and bytes depend on how many threads share a sum; `pytest` alone is to pass, too.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start

# The same examples in each run of `make test`; other ones, and many, in each run of `make fuzz`.
settings.register_profile("short", max_examples=100, deadline=None, derandomize=True, database=None)
settings.register_profile("long", max_examples=1000, deadline=None, database=None)
settings.load_profile("long" if LONG else "short")

__all__ = ["LONG", "Budget", "mutate"]  # for tests to import from here

FIXTURES = Path(__file__).parent / "fixtures"
FUZZERS = Path(__file__).parent / "fuzz"

# torchvision from PyPI does not find its compiled operators beside the CPU build of torch; timm and transformers
# import it all the same. Declaring the two schemas is enough for everything the tests use.
_torchvision = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _torchvision.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(autouse=True)
def _seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, even where it is ignored, as in what a script starts in its background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def rounds() -> Callable[[int, int], range]:
    """`rounds(short, long)`: numbers of the cases to run, each the seed of its generator, so that it can be repeated."""
    return lambda short, long: range(long if LONG else short)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What `make fuzz` selects with `-m "fuzz or hypothesis"`."""
    for item in items:
        if "rounds" in getattr(item, "fixturenames", ()) or FUZZERS in item.path.parents:
            item.add_marker("fuzz")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser; tests make contexts of their own in it. Not for the whole session: while Playwright is open, its event
    loop counts as running, and other tests run theirs."""
    with launched() as browser:
        yield browser


def fixture_names() -> list[str]:
    return sorted(path.stem for path in FIXTURES.glob("*.npz"))


class Reference:
    """A checkpoint with inputs and outputs, run through the authors' own JAX code."""

    def __init__(self, name: str) -> None:
        self.path = FIXTURES / f"{name}.npz"
        self.arrays = dict(np.load(self.path))
        self.meta: dict[str, Any] = json.loads(bytes(self.arrays["meta"]))

    def images(self, key: str = "images") -> torch.Tensor:
        return torch.from_numpy(self.arrays[key]).permute(0, 3, 1, 2).contiguous()

    def logits(self, key: str = "logits") -> torch.Tensor:
        return torch.from_numpy(self.arrays[key])


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, as a share of the largest expected value."""
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Give every parameter a value that matters, the zero-initialised ones included."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            parameter.add_(0.1 * noise)
        else:
            parameter.copy_(noise * (0.7 / max(1, parameter[0].numel()) ** 0.5))
    return model


def random_checkpoint(name: str, *, names: tuple[str, ...] | None = None, preprocess: str | None = None, **options: Any) -> Any:
    """A checkpoint with random weights in which every parameter matters."""
    from vitreous.models.build import create
    from vitreous.weights.checkpoint import Checkpoint

    model = randomise(create(name, **options))
    height, width = model.config.image_size
    return Checkpoint(
        config=model.config,
        tensors={key: value.detach() for key, value in model.state_dict().items()},
        preprocess=preprocess or f"resize({height},{width},bicubic)|range(-1,1)",
        classes=names,
    )
