"""What the model is given, as people see it: the preprocessing's last step undone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.data.transforms.ops import Normalise, Range
from vitreous.data.transforms.parse import Preprocess


def denormalise(clf: Classifier, prepared: Tensor) -> NDArray[np.uint8]:
    """A prepared image (C, H, W) as uint8 (H, W, 3): cropped and resized as the model has it, its values as on the screen.

    >>> picture = shown(clf, clf.prepare("cat.jpg")[0])
    """
    if prepared.ndim != 3 or not prepared.is_floating_point():
        raise VitreousError(
            f"a tensor of {prepared.dtype} with shape {tuple(prepared.shape)}: expected one prepared image, float (C, H, W)"
        )
    pixels = undo_scaling(clf.preprocess, prepared.detach().cpu().double())
    if not bool(torch.isfinite(pixels).all()):
        raise VitreousError("a prepared image has values that are not finite; prepare it again with clf.prepare")
    picture = pixels.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    # Of other numbers of channels, three are taken for colours; two cannot be.
    colours = picture[..., :3] if picture.shape[2] >= 3 else picture[..., :1]
    return np.ascontiguousarray(np.broadcast_to(colours, (*picture.shape[:2], 3)))


def undo_scaling(preprocess: Preprocess, values: Tensor) -> Tensor:
    """Pixels in 0..255. A resize or a crop after a scale changes nothing in this: it treats all values alike."""
    for op in reversed(preprocess.ops):
        if isinstance(op, Range):
            if op.low == op.high:
                raise VitreousError(f"preprocessing {op} makes all pixels the same; the picture cannot be had back from it")
            values = (values - op.low) * (255.0 / (op.high - op.low))
        elif isinstance(op, Normalise):
            if len(values) != len(op.mean):
                raise VitreousError(f"{op} has {len(op.mean)} channels, the prepared image {len(values)}")
            mean, deviation = (torch.tensor(numbers, dtype=values.dtype)[:, None, None] for numbers in (op.mean, op.std))
            values = (values * deviation + mean) * 255.0
    return values
