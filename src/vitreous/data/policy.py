"""The policy for unreadable data, in a module of its own that the command line imports without the data code."""

from __future__ import annotations

from typing import Literal, TypeAlias

Policy: TypeAlias = Literal["stop", "skip"]
