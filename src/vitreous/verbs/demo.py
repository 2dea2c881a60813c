from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitreous.verbs.table import table


@dataclass(frozen=True)
class Demo:
    """What the demo found, and where its pictures are."""

    models: tuple[dict[str, Any], ...]
    formats: tuple[dict[str, Any], ...]
    digits: dict[str, Any]
    pictures: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 0 if all(row["equal"] for row in self.formats) else 1

    def text(self) -> str:
        parts = []
        for title, rows in (
            ("The paper's models: cost by name, beside table 6 (exaFLOPs of pre-training on JFT)", self.models),
            ("One model in four formats, there and back", self.formats),
            ("Real digits, a ViT that nobody has trained, and a head solved in closed form", (self.digits,)),
        ):
            parts.append(table(tuple(rows[0]), [tuple(row.values()) for row in rows], title=title))
        parts.append("Pictures:\n" + "\n".join(f"  {path}" for path in self.pictures))
        return "\n\n".join(parts)

    def records(self) -> list[dict[str, Any]]:
        return [asdict(self)]


def demo(out: str = "demo") -> Demo:
    """Show all that exists so far, offline, on built-in data: build, convert, verify, predict, look.

    Example: vitreous demo --out demo

    Args:
        out: folder for the pictures and checkpoints that it makes.
    """
    import torch

    from vitreous.verbs import demo_steps

    start = time.perf_counter()
    folder = Path(out)
    torch.manual_seed(0)
    data = demo_steps.load_digits()  # first, so that a missing package is said at once
    _say("1/4 costing the paper's models")
    models = demo_steps.costs()
    _say("2/4 writing one model in four formats, and verifying each operation by operation")
    formats = demo_steps.formats(folder / "formats")
    _say("3/4 classifying real handwritten digits")
    digits = demo_steps.digits(folder / "digits", data)
    _say("4/4 drawing")
    pictures = (
        demo_steps.draw_compute(models, folder / "compute.png"),
        demo_steps.draw_digits(digits, folder / "digits.png"),
        demo_steps.draw_positions(folder / "positions.png"),
    )
    return Demo(tuple(models), tuple(formats), digits.summary(), tuple(map(str, pictures)), time.perf_counter() - start)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
