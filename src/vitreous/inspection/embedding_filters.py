"""The filters of the patch embedding and their principal components (figure 7 left of the paper).

A patch projection has one filter of (h, w, C) values for each of the D dimensions of the width. The paper shows their
principal components: the D filters are taken as D samples of h*w*C values, their mean is subtracted, and the components are
the directions of largest variance among them, largest first. In a trained model they look like the basis of a patch of low
frequency: flat colours first, then gradients, then gratings.

The filters of a hybrid's or a ResNet's first convolution are few and are shown as they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.inspection.eval_mode import Subject, eval_mode
from vitreous.models.resnet import ResNet, Trunk
from vitreous.models.stem import ConvStem
from vitreous.models.vit import ViT

COUNT = 28  # as many as the paper shows


def filters(subject: Subject, count: int = COUNT) -> NDArray[np.float32]:
    """The first `count` filters, (k, h, w, C), fewer where there are fewer: principal components of the patch projection,
    strongest first, each of length 1; for hybrids and ResNets the first convolution's kernels, as they are applied.

    A component has no sign of its own; here its largest value is positive, so that the result is the same each time.
    """
    with eval_mode(subject) as model:
        if isinstance(model, ViT | ResNet):
            if isinstance(model.trunk, Trunk):
                return _channels_last(model.trunk.root.standardised(), model.config.name)[:count].astype(np.float32)
            assert isinstance(model, ViT)
            if isinstance(model.trunk, ConvStem):
                return _channels_last(next(model.trunk.parameters()), model.config.name)[:count].astype(np.float32)
            return principal(_channels_last(model.embedding.weight, model.config.name), count).astype(np.float32)
    raise VitreousError(f"{type(model).__name__} has no embedding known here; use a ViT, a hybrid or a ResNet")


def principal(filters_DhwC: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Principal components (k, h, w, C) of filters (D, h, w, C). There are at most D - 1: the mean takes one."""
    samples = filters_DhwC.reshape(len(filters_DhwC), -1)
    _, strengths, components = np.linalg.svd(samples - samples.mean(axis=0), full_matrices=False)
    # A direction without variance is noise of the decomposition, and would be shown as if it meant something.
    noise = max(samples.shape) * np.finfo(np.float32).eps * np.abs(samples).max()
    components = components[strengths > noise][:count]
    if not len(components):
        raise VitreousError("all filters of the patch projection are alike, so they have no principal components to show")
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    return (components * np.sign(largest)).reshape(-1, *filters_DhwC.shape[1:])


def as_images(filters: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Filters (k, h, w, C) for people, (k, h, w, 3): each from 0 to 255 by itself, for their scales say nothing.

    Three channels are taken as red, green and blue. Any other number has no colours, so their mean is shown in grey.
    """
    if filters.shape[-1] != 3:
        filters = filters.mean(axis=-1, keepdims=True)
    lowest, highest = filters.min(axis=(1, 2, 3), keepdims=True), filters.max(axis=(1, 2, 3), keepdims=True)
    spread = highest - lowest
    scaled = np.where(spread > 0, (filters - lowest) / np.where(spread > 0, spread, 1), 0.5)  # all alike: middle grey
    return np.rint(np.broadcast_to(scaled, (*scaled.shape[:3], 3)) * 255).astype(np.uint8)


def _channels_last(weight_DChw: Tensor, name: str) -> NDArray[np.float64]:
    kernel = weight_DChw.detach().cpu().double().permute(0, 2, 3, 1).numpy()
    if not np.isfinite(kernel).all():
        raise VitreousError(f"the embedding of {name} holds values that are not finite; its checkpoint is damaged")
    return kernel
