"""Lets timm, transformers and torchvision itself be imported where torchvision's compiled operators do not load."""

from __future__ import annotations

from functools import cache

import torch


@cache  # a second declaration would be refused, and the schemas last only as long as what is returned
def declare_torchvision() -> torch.library.Library:
    """torchvision from PyPI does not find its operators beside a CPU build of torch; two schemas are enough to import it."""
    schemas = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        schemas.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return schemas
