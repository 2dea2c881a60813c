"""Lets timm, transformers and torchvision itself be imported where torchvision's compiled operators do not load."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

import torch


@cache  # a second declaration would be refused, and the schemas last only as long as what is returned
def declare_torchvision() -> Any:
    """torchvision from PyPI does not find its operators beside a CPU build of torch; two schemas are enough to import it."""
    schemas = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # declared already, by operators that did load
            schemas.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return schemas
