"""The four families of checkpoints, each a source of weights and a format to write."""

from __future__ import annotations

from typing import Literal

Family = Literal["vitreous", "official", "timm", "huggingface"]
