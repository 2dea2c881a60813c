"""The preprocessing operations, one class each; `parse` reads the strings that name them."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.decode import PIXELS
from vitreous.data.transforms.image import PLAIN, Box, ImageData, crop, flip, pad, resize, size_of, to_image, to_tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class SizedOp:
    """An operation whose string begins with a size: 224, or height,width."""

    height: int
    width: int

    @property
    def size_text(self) -> str:
        return f"{self.height}" if self.height == self.width else f"{self.height},{self.width}"

    def margins(self, image: ImageData) -> tuple[int, int]:
        """How much higher and wider than this size the image is."""
        height, width = size_of(image)
        if height < self.height or width < self.width:
            raise VitreousError(f"{self} does not fit into an image of {height} x {width}; put a resize before it")
        return height - self.height, width - self.width


@dataclass(frozen=True)
class Resize(SizedOp):
    filter: str = "bilinear"

    def __call__(self, image: ImageData) -> ImageData:
        return resize(image, self.height, self.width, self.filter)

    def __str__(self) -> str:
        return f"resize({self.size_text},{self.filter})"


@dataclass(frozen=True)
class ResizeSmall(SizedOp):
    """The smallest size of the image's own shape that covers height x width: one side fits, the other is as long or longer."""

    filter: str = "bilinear"
    floor: bool = False  # the authors round the longer side, and timm too for a rectangle; torchvision cuts its fraction off

    def __call__(self, image: ImageData) -> ImageData:
        height, width = size_of(image)
        tall, wide = self.size_for(height, width)
        if tall * wide > PIXELS:  # of a line one pixel high it would make gigapixels
            raise VitreousError(f"an image of {height} x {width} is too long and thin for {self}; crop it, or use resize(...)")
        return resize(image, tall, wide, self.filter)

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that an image of this size gets; whole numbers throughout, so that no fraction is lost."""
        if height * self.width < width * self.height:  # wider than the target: the height fits
            return self.height, self._longer(self.height * width, height)
        return self._longer(self.width * height, width), self.width

    def _longer(self, numerator: int, denominator: int) -> int:
        return numerator // denominator if self.floor else round(numerator / denominator)

    def __str__(self) -> str:
        return f"resize_small({self.size_text},{self.filter}{',floor' if self.floor else ''})"


@dataclass(frozen=True)
class CentralCrop(SizedOp):
    round: bool = False

    def __call__(self, image: ImageData) -> ImageData:
        height, width = self.margins(image)
        top, left = (round(margin / 2) if self.round else margin // 2 for margin in (height, width))
        return crop(image, (top, left, self.height, self.width))

    def __str__(self) -> str:
        return f"central_crop({self.size_text}{',round' if self.round else ''})"


@dataclass(frozen=True)
class Pad:
    """Black around the image, so that a random crop moves things without enlarging them."""

    margin: int

    def __call__(self, image: ImageData) -> ImageData:
        height, width = size_of(image)
        if (height + 2 * self.margin) * (width + 2 * self.margin) > PIXELS:
            raise VitreousError(f"{self} around an image of {height} x {width} makes more than {PIXELS:,} pixels")
        return pad(image, self.margin)

    def __str__(self) -> str:
        return f"pad({self.margin})"


@dataclass(frozen=True)
class RandomCrop(SizedOp):
    def __call__(self, image: ImageData, rng: random.Random) -> ImageData:
        height, width = self.margins(image)
        return crop(image, (_draw_below(rng, height + 1), _draw_below(rng, width + 1), self.height, self.width))

    def __str__(self) -> str:
        return f"random_crop({self.size_text})"


@dataclass(frozen=True)
class InceptionCrop(SizedOp):
    """A random part of the image, of any size and of an aspect ratio near 1, resized to one size.

    The paper's is TensorFlow's `sample_distorted_bounding_box`, whose way of drawing differs from torchvision's: the ratio
    is uniform, not its logarithm, and so is the height, not the area; hence small crops are more frequent.
    """

    smallest: float = 0.05  # share of the image's area; torchvision's default is 0.08
    largest: float = 1.0
    filter: str = "bilinear"

    RATIOS: ClassVar[tuple[float, float]] = (0.75, 1.33)
    ATTEMPTS: ClassVar[int] = 100

    def __call__(self, image: ImageData, rng: random.Random) -> ImageData:
        part = resize(image, self.height, self.width, self.filter, self.box(*size_of(image), rng))
        return to_image(part) if isinstance(part, Tensor) else part  # the authors go back to 8 bits here

    def box(self, height: int, width: int, rng: random.Random) -> Box:
        """Top, left, height and width; the whole image if no attempt succeeds, as with very long ones."""
        low, high = self.RATIOS
        for _ in range(self.ATTEMPTS):
            found = self._attempt(height, width, low + rng.random() * (high - low), rng)
            if found is not None:
                return found
        return 0, 0, height, width

    def _attempt(self, height: int, width: int, ratio: float, rng: random.Random) -> Box | None:
        least, most = self.smallest * height * width, self.largest * height * width
        lowest, highest = round(math.sqrt(least / ratio)), round(math.sqrt(most / ratio))
        if round(highest * ratio) > width:
            highest = int((width + 0.5 - 1e-7) / ratio)
            if round(highest * ratio) > width:
                highest -= 1
        highest = min(highest, height)
        tall = min(lowest, highest)
        tall += _draw_below(rng, highest - tall + 1)
        if round(tall * ratio) * tall < least:
            tall += 1
        if round(tall * ratio) * tall > most:
            tall -= 1
        wide = round(tall * ratio)
        if not least <= tall * wide <= most or not 0 < tall <= height or not 0 < wide <= width:
            return None
        # TensorFlow draws from all places but the last. A place more, where there is only one, would not be a draw.
        return _draw_below(rng, max(1, height - tall)), _draw_below(rng, max(1, width - wide)), tall, wide

    def __str__(self) -> str:
        area = (
            ""
            if (self.smallest, self.largest) == (0.05, 1.0)
            else f",area={_format_number(self.smallest)}:{_format_number(self.largest)}"
        )
        return f"inception_crop({self.size_text},{self.filter}{area})"


@dataclass(frozen=True)
class Flip:
    """A random horizontal flip, with probability 1/2."""

    def __call__(self, image: ImageData, rng: random.Random) -> ImageData:
        return flip(image) if rng.random() < 0.5 else image

    def __str__(self) -> str:
        return "flip"


@dataclass(frozen=True)
class RandAugment:
    layers: int
    magnitude: float

    def __call__(self, image: ImageData, rng: random.Random) -> ImageData:
        from vitreous.data.transforms.randaugment import randaugment

        if isinstance(image, Tensor):
            raise VitreousError(f"{self} must come before range, normalise and {PLAIN} resizes: it needs pixels of 8 bits")
        return randaugment(to_image(image), self.layers, self.magnitude, rng)

    def __str__(self) -> str:
        return f"randaug({self.layers},{_format_number(self.magnitude)})"


class Scale(ABC):
    """What changes values alone, for one image (C, H, W) or many (B, C, H, W)."""

    def __call__(self, image: ImageData) -> Tensor:
        pixels = to_tensor(image).clone()
        self.in_place(pixels.numpy())
        return pixels

    @abstractmethod
    def in_place(self, pixels: NDArray[np.float32]) -> None:
        """By numpy: on a busy machine torch's threads wait for each other for too long."""

    @abstractmethod
    def undo(self, values: Tensor) -> Tensor:
        """The pixel values in 0..255 that these were, but for rounding errors."""


@dataclass(frozen=True)
class Range(Scale):
    low: float
    high: float

    def in_place(self, pixels: NDArray[np.float32]) -> None:
        pixels *= np.float32((self.high - self.low) / 255.0)
        pixels += np.float32(self.low)

    def undo(self, values: Tensor) -> Tensor:
        if self.low == self.high:
            raise VitreousError(f"preprocessing {self} makes all pixels the same; it cannot be undone")
        return (values - self.low) * (255.0 / (self.high - self.low))

    def __str__(self) -> str:
        return f"range({_format_number(self.low)},{_format_number(self.high)})"


@dataclass(frozen=True)
class Normalise(Scale):
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def in_place(self, pixels: NDArray[np.float32]) -> None:
        if pixels.shape[-3] != len(self.mean):
            raise VitreousError(f"{self} has {len(self.mean)} channels, the image {pixels.shape[-3]}")
        pixels /= np.float32(255.0)
        pixels -= np.array(self.mean, np.float32)[:, None, None]
        pixels /= np.array(self.std, np.float32)[:, None, None]

    def undo(self, values: Tensor) -> Tensor:
        if values.shape[-3] != len(self.mean):
            raise VitreousError(f"{self} has {len(self.mean)} channels, the preprocessed image {values.shape[-3]}")
        mean, std = (values.new_tensor(numbers)[:, None, None] for numbers in (self.mean, self.std))
        return (values * std + mean) * 255.0

    def __str__(self) -> str:
        if (self.mean, self.std) == (IMAGENET_MEAN, IMAGENET_STD):
            return "normalise(imagenet)"
        return f"normalise({','.join(repr(x) for x in (*self.mean, *self.std))})"


Op: TypeAlias = Resize | ResizeSmall | CentralCrop | Pad | InceptionCrop | RandomCrop | Flip | RandAugment | Scale
RANDOM_OPS = (InceptionCrop, RandomCrop, Flip, RandAugment)


def _format_number(value: float) -> str:
    """As short as it can be without becoming another number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _draw_below(rng: random.Random, count: int) -> int:
    """A whole number from 0 to count - 1, made of `random()` alone: `randrange` may change between Python versions."""
    return int(rng.random() * count)
