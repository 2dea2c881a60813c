"""`--model auto`: models to train from scratch, by the images' size and their number.

A residual convolutional stem, as wide as the tokens, and two encoder layers of full attention behind it: measured in
docs/log.md. Small images (up to 64 pixels a side) are reduced to about 4 x 4 places, larger ones to at most 16 x 16. From
200,000 images of that size on it is the paper's ViT-B/16.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from vitreous.core.progress import describe_seconds
from vitreous.models.config import STEM_GROUP, ModelConfig, ViTConfig
from vitreous.models.cost import compute_cost
from vitreous.training.data_split import SMALL

DEPTH = 2
WIDTHS = (512, 256, 128, 64)
_MOST_IMAGES = {64: 10_000, 128: 25_000, 256: 200_000}  # up to which this is the largest width
_MOST_PLACES = 16  # of a side
PAPERS = "ViT-B/16"


class Measured(NamedTuple):
    """A run of docs/log.md, to tell people what to expect."""

    data: str
    side: int
    images: int
    flops: float
    accuracy: float


MEASURED = (
    Measured("digits", 8, 1_097, 5.9e11, 0.985),
    Measured("printed letters", 8, 6_000, 5.1e11, 0.958),
    Measured("Fashion-MNIST", 28, 57_000, 1.0e14, 0.936),
    Measured("CIFAR-10", 32, 40_000, 6.0e13, 0.862),
    Measured("CIFAR-10", 32, 47_500, 2.2e14, 0.894),
    Measured("imagenette", 112, 1_200, 3.4e13, 0.690),
)


def auto_models(size: tuple[int, int], images: int, masks_patches: bool = False) -> tuple[tuple[str, ...], str]:
    """Candidates, the largest first, and the reason."""
    side = max(size)
    if side > SMALL and (masks_patches or images >= max(_MOST_IMAGES.values())):
        return (PAPERS,), f"the paper's; for {images:,} images of more than {SMALL} pixels nothing better was measured"
    largest = next((width for width, most in _MOST_IMAGES.items() if images < most), WIDTHS[0])
    widths = [width for width in WIDTHS if width <= largest]
    if masks_patches:  # a stem would look at the hidden patches
        common = math.gcd(*size)
        patch = max(d for d in range(1, common + 1) if common % d == 0 and (side // d >= min(7, side // 2) or d == 1))
        return tuple(f"ViT-{width}x4/{patch}" for width in widths), "masked patches need patches of their own: no stem"
    places = 4 if side <= SMALL else _MOST_PLACES
    halvings = max(1, round(math.log2(max(8, side) / places)) if side <= SMALL else math.ceil(math.log2(side / places)))
    stride = 2**halvings
    fitting = [width for width in widths if width // stride >= STEM_GROUP] or [stride * STEM_GROUP]
    names = tuple(f"C{halvings + 1}x{width // stride}r+ViT-{width}x{DEPTH}/{stride}" for width in fitting)
    left = f"{-(-size[0] // stride)} x {-(-size[1] // stride)} places"
    return names, f"a residual stem in {halvings + 1} stages leaves {left} of {size[0]} x {size[1]} pixels"


def expectation(model: ModelConfig, images: int, seen: float) -> str | None:
    """How long the run will take, and the accuracy of the most similar run that was measured."""
    if not (isinstance(model, ViTConfig) and model.stem):
        return None
    flops = compute_cost(model).training_flops(1) * seen
    side = max(model.image_size)

    def distance(row: Measured) -> tuple[float, float]:
        return abs(math.log(row.side / side)), abs(math.log(row.images / images)) + abs(math.log(row.flops / flops))

    nearest = min(MEASURED, key=distance)
    return (
        f"{flops:.2g} FLOPs in all, about {describe_seconds(flops / 1e11)} at 100 GFLOP/s; for comparison, {nearest.data} "
        f"({nearest.images:,} images of {nearest.side} pixels) reached {nearest.accuracy:.1%} with {nearest.flops:.2g}"
    )
