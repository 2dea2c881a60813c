"""Preprocessing as a short string: `resize(384)|range(-1,1)`. It is stored in the checkpoint and used by every verb.

    resize(S[,filter])  resize(H,W[,filter])   to exactly that size
    resize_small(S[,filter][,floor])           the shorter side to S, the shape kept; `floor` cuts the longer side's fraction
    central_crop(S[,round])  central_crop(H,W) an odd margin leaves the extra pixel last; with `round`, as torchvision does
    range(LOW,HIGH)                            pixels 0..255 to LOW..HIGH
    normalise(MEAN,STD) x channels             pixels to 0..1, minus the mean, over the deviation:
                                               normalise(imagenet), or all means and then all deviations

Filters are Pillow's, which average over all the pixels they shrink (bilinear, bicubic, lanczos, box, hamming,
nearest), and `bilinear-plain`, TensorFlow's default, which does not: with it the authors trained and tested.
The string is parsed by a grammar of five lines; nothing is ever evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitreous.data.decode import ImageLike, decode
from vitreous.errors import VitreousError, unknown

Picture: TypeAlias = Image.Image | Tensor
"""Pixels on their way: a Pillow image, later a float tensor (C, H, W) that starts out in 0..255."""

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
PLAIN = "bilinear-plain"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def to_tensor(picture: Picture) -> Tensor:
    if isinstance(picture, Tensor):
        return picture
    array = np.array(picture, dtype=np.float32)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None]).permute(2, 0, 1)


def _resized(picture: Picture, height: int, width: int, how: str) -> Picture:
    if how == PLAIN:
        pixels = to_tensor(picture)
        if tuple(pixels.shape[1:]) == (height, width):
            return pixels
        return F.interpolate(pixels[None], size=(height, width), mode="bilinear", align_corners=False)[0]
    if isinstance(picture, Tensor):
        raise VitreousError(f"a resize with filter {how!r} must come before range, normalise and {PLAIN} resizes")
    return picture if picture.size == (width, height) else picture.resize((width, height), FILTERS[how])


def _size_of(picture: Picture) -> tuple[int, int]:
    if isinstance(picture, Tensor):
        return picture.shape[1], picture.shape[2]
    return picture.height, picture.width


@dataclass(frozen=True)
class Resize:
    name: ClassVar[str] = "resize"
    height: int
    width: int
    filter: str = "bilinear"

    def __call__(self, picture: Picture) -> Picture:
        return _resized(picture, self.height, self.width, self.filter)

    def __str__(self) -> str:
        return f"resize({_size_text(self.height, self.width)},{self.filter})"


@dataclass(frozen=True)
class ResizeSmall:
    name: ClassVar[str] = "resize_small"
    size: int
    filter: str = "bilinear"
    floor: bool = False  # the authors round the longer side; timm and Hugging Face cut its fraction off

    def __call__(self, picture: Picture) -> Picture:
        height, width = _size_of(picture)
        short, long = min(height, width), max(height, width)
        longer = self.size * long // short if self.floor else round(self.size * long / short)
        tall, wide = (longer, self.size) if height > width else (self.size, longer)
        return _resized(picture, tall, wide, self.filter)

    def __str__(self) -> str:
        return f"resize_small({self.size},{self.filter}{',floor' if self.floor else ''})"


@dataclass(frozen=True)
class CentralCrop:
    name: ClassVar[str] = "central_crop"
    height: int
    width: int
    round: bool = False

    def __call__(self, picture: Picture) -> Picture:
        height, width = _size_of(picture)
        if height < self.height or width < self.width:
            raise VitreousError(f"{self} does not fit into a picture of {height} x {width}; put a resize before it")
        margins = (height - self.height) / 2, (width - self.width) / 2
        top, left = (round(m) if self.round else int(m) for m in margins)
        if isinstance(picture, Tensor):
            return picture[:, top : top + self.height, left : left + self.width]
        return picture.crop((left, top, left + self.width, top + self.height))

    def __str__(self) -> str:
        return f"central_crop({_size_text(self.height, self.width)}{',round' if self.round else ''})"


@dataclass(frozen=True)
class Range:
    name: ClassVar[str] = "range"
    low: float
    high: float

    def __call__(self, picture: Picture) -> Tensor:
        return to_tensor(picture) * ((self.high - self.low) / 255.0) + self.low

    def __str__(self) -> str:
        return f"range({self.low:g},{self.high:g})"


@dataclass(frozen=True)
class Normalise:
    name: ClassVar[str] = "normalise"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __call__(self, picture: Picture) -> Tensor:
        pixels = to_tensor(picture)
        if pixels.shape[0] != len(self.mean):
            raise VitreousError(f"{self} has {len(self.mean)} channels, the picture {pixels.shape[0]}")
        mean = torch.tensor(self.mean)[:, None, None]
        return (pixels / 255.0 - mean) / torch.tensor(self.std)[:, None, None]

    def __str__(self) -> str:
        if (self.mean, self.std) == (IMAGENET_MEAN, IMAGENET_STD):
            return "normalise(imagenet)"
        return f"normalise({','.join(repr(x) for x in (*self.mean, *self.std))})"


Op: TypeAlias = Resize | ResizeSmall | CentralCrop | Range | Normalise


def _size_text(height: int, width: int) -> str:
    return f"{height}" if height == width else f"{height},{width}"


class _Arguments:
    """The words between the brackets of one op, taken one by one with checks that name the op."""

    def __init__(self, op: str, words: list[str]) -> None:
        self.op, self.words = op, words

    def fail(self, why: str) -> VitreousError:
        return VitreousError(f"preprocessing {self.op}({','.join(self.words)}): {why}")

    def sizes(self) -> list[int]:
        sizes = [int(word) for word in self.words if re.fullmatch(r"\d+", word)]
        if not sizes or min(sizes) < 1 or max(sizes) > 65_536:
            raise self.fail("needs a size of at least 1 pixel, such as 224")
        return sizes

    def pair(self) -> tuple[int, int]:
        sizes = self.sizes()
        if len(sizes) > 2:
            raise self.fail("takes one size or height,width")
        return sizes[0], sizes[-1]

    def flag(self, word: str) -> bool:
        """Whether the word stands there; it is taken away."""
        there = word in self.words
        self.words = [other for other in self.words if other != word]
        return there

    def filter(self) -> str:
        names = [word for word in self.words if not re.fullmatch(r"\d+", word)]
        if len(names) > 1:
            raise self.fail("takes one filter")
        if names and names[0] not in (*FILTERS, PLAIN):
            raise unknown("filter", names[0], (*FILTERS, PLAIN))
        return names[0] if names else "bilinear"

    def numbers(self, count: int | None = None) -> tuple[float, ...]:
        try:
            numbers = tuple(float(word) for word in self.words)
        except ValueError:
            raise self.fail("takes numbers") from None
        if (count is not None and len(numbers) != count) or not all(np.isfinite(numbers)):
            raise self.fail(f"takes {count} finite numbers")
        return numbers


def _resize(a: _Arguments) -> Op:
    return Resize(*a.pair(), a.filter())


def _resize_small(a: _Arguments) -> Op:
    floor = a.flag("floor")
    if len(a.sizes()) != 1:
        raise a.fail("takes one size")
    return ResizeSmall(a.sizes()[0], a.filter(), floor)


def _central_crop(a: _Arguments) -> Op:
    rounded = a.flag("round")
    if len(a.words) != len(a.sizes()):
        raise a.fail("takes one size or height,width")
    return CentralCrop(*a.pair(), rounded)


def _range(a: _Arguments) -> Op:
    low, high = a.numbers(2)
    return Range(low, high)


def _normalise(a: _Arguments) -> Op:
    if a.words == ["imagenet"]:
        return Normalise()
    numbers = a.numbers()
    if not numbers or len(numbers) % 2:
        raise a.fail("takes as many deviations as means")
    half = len(numbers) // 2
    if min(numbers[half:]) <= 0:
        raise a.fail("deviations must be positive")
    return Normalise(numbers[:half], numbers[half:])


OPS: dict[str, Callable[[_Arguments], Op]] = {
    "resize": _resize,
    "resize_small": _resize_small,
    "central_crop": _central_crop,
    "range": _range,
    "normalise": _normalise,
}
_CALL = re.compile(r"\s*([a-z_]+)\s*(?:\(([^()|]*)\))?\s*")


def parse(text: str) -> tuple[Op, ...]:
    """The ops that a string names."""
    ops = []
    for part in text.split("|"):
        match = _CALL.fullmatch(part)
        if not match:
            raise VitreousError(
                f"preprocessing {text!r}: cannot read {part.strip()!r}; expected something like resize(224)|range(-1,1)"
            )
        name, inside = match[1], match[2] or ""
        if name not in OPS:
            raise unknown("preprocessing op", name, OPS)
        words = [word.strip() for word in inside.split(",")] if inside.strip() else []
        ops.append(OPS[name](_Arguments(name, words)))
    return tuple(ops)


class Preprocess:
    """A parsed string: an image of any kind in, a tensor (C, H, W) out."""

    def __init__(self, text: str, channels: int = 3) -> None:
        self.ops = parse(text)
        self.channels = channels

    def __call__(self, image: ImageLike) -> Tensor:
        picture: Picture = decode(image, self.channels)
        for op in self.ops:
            picture = op(picture)
        return to_tensor(picture)

    def __str__(self) -> str:
        return "|".join(str(op) for op in self.ops)

    def __repr__(self) -> str:
        return f"Preprocess({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preprocess) and (self.ops, self.channels) == (other.ops, other.channels)

    def __hash__(self) -> int:
        return hash((self.ops, self.channels))

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of what comes out, where every picture comes out alike."""
        for op in reversed(self.ops):
            if isinstance(op, (Resize, CentralCrop)):
                return op.height, op.width
            if isinstance(op, ResizeSmall):
                return None
        return None

    def at(self, height: int, width: int) -> Preprocess:
        """The same for another size of output; a resize before a crop grows in proportion."""
        if self.size in (None, (height, width)):
            return self
        old_height, old_width = self.size

        def scaled(op: Op) -> Op:
            if isinstance(op, (Resize, CentralCrop)):
                tall, wide = round(op.height * height / old_height), round(op.width * width / old_width)
                return replace(op, height=tall, width=wide)
            if isinstance(op, ResizeSmall):
                return replace(op, size=round(op.size * max(height / old_height, width / old_width)))
            return op

        return Preprocess("|".join(str(scaled(op)) for op in self.ops), self.channels)
