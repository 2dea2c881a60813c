"""The studies by name: one module each, whose source is what was registered before its runs."""

from __future__ import annotations

import hashlib
import importlib
import inspect

from vitreous.core.errors import unknown_name
from vitreous.studies.study import Study

STUDIES = (
    "data-size",
    "compute",
    "transfer",
    "self-supervision",
    "positions",
    "head",
    "shape",
    "optimizer",
    "resolution",
    "distance",
    "axial",
)
COST = "cost"  # has rows of measurements in the place of claims; see `cost_study`


def find_study(name: str) -> tuple[Study, str]:
    """The study, and the SHA-256 of its file."""
    if name not in STUDIES:
        raise unknown_name("study", name, (*STUDIES, COST))
    module = importlib.import_module(f"vitreous.studies.{name.replace('-', '_')}_study")
    study: Study = module.STUDY
    return study, hashlib.sha256(inspect.getsource(module).encode()).hexdigest()
