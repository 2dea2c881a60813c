"""A preprocessed image as people see it: the scaling of its pixel values undone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.ops import Scale
from vitreous.data.transforms.parse import Preprocess


def denormalise(preprocess: Preprocess, image: Tensor) -> NDArray[np.uint8]:
    """A preprocessed image (C, H, W) as uint8 (H, W, 3), cropped and resized as the model has it.

    >>> pixels = denormalise(clf.preprocess, clf.prepare("cat.jpg")[0])
    """
    if image.ndim != 3 or not image.is_floating_point():
        raise VitreousError(
            f"a tensor of {image.dtype} with shape {tuple(image.shape)}: expected one preprocessed image, float (C, H, W)"
        )
    pixels = undo_scaling(preprocess, image.detach().cpu().double())
    if not bool(torch.isfinite(pixels).all()):
        raise VitreousError("a preprocessed image has values that are not finite; prepare it again with clf.prepare")
    channels_last = pixels.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    # Of other numbers of channels, three are taken for colours; two cannot be.
    colours = channels_last[..., :3] if channels_last.shape[2] >= 3 else channels_last[..., :1]
    return np.ascontiguousarray(np.broadcast_to(colours, (*channels_last.shape[:2], 3)))


def undo_scaling(preprocess: Preprocess, values: Tensor) -> Tensor:
    """The pixel values in 0..255 of images (..., C, H, W), but for rounding errors."""
    for op in reversed(preprocess.ops):
        if isinstance(op, Scale):  # a resize or a crop after it treats all values alike
            values = op.undo(values)
    return values
