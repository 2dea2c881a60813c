"""`--model auto`: a model to train from scratch, by the images' size, their number and the budget.

Small images (up to 64 pixels a side) get a residual convolutional stem that leaves about 4 x 4 places, as wide as the tokens,
and two encoder layers of full attention behind it. The width is the largest that suits the number of images and that the
budget lets see each image `EPOCHS` times. Measured in docs/log.md; larger images keep the paper's ViT-B/16.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from vitreous.models.config import STEM_GROUP
from vitreous.models.cost import cost
from vitreous.training.data_split import SMALL

DEPTH = 2
EPOCHS = 10  # a model that sees its images less often than this is too large for its budget
WIDTHS = (512, 256, 128, 64)
_MOST_IMAGES = {64: 10_000, 128: 25_000, 256: 200_000}  # up to which this is the largest width
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
)


def auto_models(size: tuple[int, int], images: int, masks_patches: bool = False) -> tuple[tuple[str, ...], str]:
    """Candidates, the largest first, and the reason."""
    side = max(size)
    if side > SMALL:
        return (PAPERS,), f"model {PAPERS}: the paper's; for images of more than {SMALL} pixels nothing better was measured"
    largest = next((width for width, most in _MOST_IMAGES.items() if images < most), WIDTHS[0])
    widths = [width for width in WIDTHS if width <= largest]
    if masks_patches:  # a stem would look at the hidden patches
        common = math.gcd(*size)
        patch = max(d for d in range(1, common + 1) if common % d == 0 and (side // d >= min(7, side // 2) or d == 1))
        return tuple(f"ViT-{width}x4/{patch}" for width in widths), "masked patches need patches of their own: no stem"
    convolutions = 1 + max(1, round(math.log2(max(8, side) / 4)))
    stride = 2 ** (convolutions - 1)
    fitting = [width for width in widths if width // stride >= STEM_GROUP] or [stride * STEM_GROUP]
    names = tuple(f"C{convolutions}x{width // stride}r+ViT-{width}x{DEPTH}/{stride}" for width in fitting)
    return names, f"a residual stem in {convolutions} stages leaves about 4 x 4 places of {size[0]} x {size[1]} pixels"


def choose_by_flops(
    names: tuple[str, ...], size: tuple[int, int], channels: int, images: int, flops: float | None
) -> tuple[str, str]:
    """The largest that the budget pays for, and why; without a budget, the largest."""
    if flops is None or len(names) == 1:
        return names[0], f"the largest for {images:,} images"
    for name in names:
        seen = flops / cost(name, image_size=size, classes=10, channels=channels).training_flops(1)
        if seen >= EPOCHS * images:
            break
    return name, f"{flops:g} FLOPs let it see {seen:,.0f} images, {seen / images:.3g} epochs of {images:,}"


def expectation(name: str, size: tuple[int, int], channels: int, images: int, seen: float) -> str | None:
    """How long the run will take, and the accuracy of the most similar run that was measured."""
    if max(size) > SMALL:
        return None
    flops = cost(name, image_size=size, classes=10, channels=channels).training_flops(1) * seen

    def distance(row: Measured) -> tuple[float, float]:
        return abs(math.log(row.side / max(size))), abs(math.log(row.images / images)) + abs(math.log(row.flops / flops))

    nearest = min(MEASURED, key=distance)
    return (
        f"{flops:.2g} FLOPs in all, about {flops / 1e11 / 60:.2g} minutes at 100 GFLOP/s; for comparison, {nearest.data} "
        f"({nearest.images:,} images of {nearest.side} pixels) reached {nearest.accuracy:.1%} with {nearest.flops:.2g}"
    )
