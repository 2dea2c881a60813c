"""What masked-patch pre-training predicts: three targets, computed from the images that the model sees (appendix B.1.2).

    mean        one of 512 colours: the patch's mean, 3 bits a channel
    downsized   the same for each cell of the patch brought down to 4 x 4: 16 predictions
    pixels      all values of the patch, by regression

All go back from the model's input to pixel levels 0..255 first, so that the labels do not depend on how the input is scaled.
Colours are then computed in whole numbers: a mean that lies exactly on the border of two colours falls on the same side on
every device and in every precision. The patches come in the order of `ViT.patches`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.denormalise import undo_scaling
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.config import Size
from vitreous.training.recipes.recipe import MaskTarget

SHADES = 8  # 3 bits a channel
_SHADE = 256 // SHADES  # levels that share a shade
CELLS = 4  # a side of the downsized patch


@dataclass(frozen=True)
class PatchTarget:
    """One of the three, for patches of one size."""

    kind: MaskTarget
    patch: Size  # the pixels that one token stands for: of a hybrid, its trunk's stride times its patch
    channels: int

    def __post_init__(self) -> None:
        if self.kind != "pixels" and self.channels not in (1, 3):
            raise VitreousError(
                f"mask_target={self.kind} needs images with 1 or 3 channels, not {self.channels}; use mask_target=pixels"
            )

    @property
    def cells(self) -> Size:
        """Predictions down and across a patch. One of fewer than 4 pixels is not made larger for it."""
        down, across = self.patch
        return (min(CELLS, down), min(CELLS, across)) if self.kind == "downsized" else (1, 1)

    @property
    def classes(self) -> int:
        """512, or 8 for grey images; none for the regression."""
        return SHADES**self.channels if self.kind != "pixels" else 0

    @property
    def outputs(self) -> int:
        """Numbers that a patch's prediction is made of."""
        if self.kind == "pixels":
            return self.patch[0] * self.patch[1] * self.channels
        return self.cells[0] * self.cells[1] * self.classes

    def __call__(self, levels: Tensor) -> Tensor:
        """(B, patches, predictions) from `pixel_levels`: whole numbers below `classes`, or values in -1..1."""
        if self.kind == "pixels":  # brought to -1..1 whatever the model's own scale is
            return regions(levels, self.patch).permute(0, 1, 3, 4, 2).flatten(2).float() / 127.5 - 1.0
        return colours(levels, self.patch, self.cells)


def pixel_levels(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Preprocessed images (B, C, H, W) as the 8-bit levels they came from.

    Levels are whole after all of the paper's training operations, and rounding makes them exactly so again. After a
    `bilinear-plain` resize, which leaves fractions, they are the nearest ones.
    """
    return undo_scaling(preprocess, images.float()).round().clamp(0, 255).to(torch.uint8)


def regions(levels: Tensor, patch: Size) -> Tensor:
    """(B, C, H, W) cut into patches (B, N, C, patch height, patch width), row after row of the grid."""
    for what, size, side in (("height", levels.shape[2], patch[0]), ("width", levels.shape[3], patch[1])):
        if size % side:  # a hybrid pads such an image, and its last tokens stand for pixels that are not there
            near = f"{size // side * side} or {(size // side + 1) * side}" if size > side else f"{side}"
            raise VitreousError(
                f"image {what} {size} is not a multiple of the {side} pixels of a patch, so the last have no pixels; use {near}"
            )
    cut = levels.unflatten(3, (-1, patch[1])).unflatten(2, (-1, patch[0]))  # B, C, rows, down, columns, across
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def colours(levels: Tensor, patch: Size, cells: Size) -> Tensor:
    """The mean colour of each cell, as a number (B, N, cells): for three channels, 64 red + 8 green + blue, each of 0..7."""
    across = _area_sums(regions(levels, patch), cells[1])  # B, N, C, pixels down, cells across
    sums = _area_sums(across.transpose(-2, -1), cells[0]).transpose(-2, -1)  # B, N, C, cells down, cells across
    shades = sums // (_SHADE * patch[0] * patch[1])  # a sum is its cell's mean times the pixels of a patch
    number = shades[:, :, 0]
    for channel in range(1, shades.shape[2]):
        number = number * SHADES + shades[:, :, channel]
    return number.flatten(2).long()


def _area_sums(values: Tensor, cells: int) -> Tensor:
    """The last axis in `cells` equal parts, each the sum over what it covers.

    A pixel that a border cuts belongs to both parts, to each in proportion. Counted in `cells`-ths of a pixel all of
    these shares are whole numbers, and every part covers as many of them as the axis has pixels.
    """
    size, parts = values.shape[-1], []
    for cell in range(cells):
        begin, end = cell * size, (cell + 1) * size
        first, beyond = begin // cells, -(-end // cells)
        pixel = torch.arange(first, beyond, device=values.device, dtype=torch.int32)
        share = ((pixel + 1) * cells).clamp(max=end) - (pixel * cells).clamp(min=begin)
        parts.append((values[..., first:beyond] * share).sum(-1, dtype=torch.int32))
    return torch.stack(parts, -1)
