"""The four families of checkpoints: whose weights they are, and whose format they are written in."""

from __future__ import annotations

from typing import Literal

Family = Literal["vitreous", "official", "timm", "huggingface"]
