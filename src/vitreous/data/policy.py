"""What to do about something that cannot be read. By itself, so that the command line knows it without the data code."""

from __future__ import annotations

from typing import Literal, TypeAlias

Policy: TypeAlias = Literal["stop", "skip"]
