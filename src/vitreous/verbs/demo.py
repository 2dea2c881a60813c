from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Demo:
    exit_code: int = 0

    def text(self) -> str:
        return ""

    def records(self) -> list[dict[str, Any]]:
        return []


def demo() -> Demo:
    """Show it."""
    return Demo()
