"""Preprocessing as a short string: `resize(384)|range(-1,1)`. It is stored in the checkpoint and used by every command.

    resize(S[,filter])  resize(H,W[,filter])   to exactly that size
    resize_small(S[,filter][,floor])           the shorter side to S, the shape kept; `floor` cuts the longer side's fraction
    resize_small(H,W[,filter][,floor])         to the smallest size that covers H x W, the shape kept
    central_crop(S[,round])  central_crop(H,W) an odd margin leaves the extra pixel last; with `round`, as torchvision does
    pad(N)                                     N black pixels around, for a random crop to move things in
    range(LOW,HIGH)                            pixels 0..255 to LOW..HIGH
    normalise(MEAN,STD) x channels             pixels to 0..1, minus the mean, over the deviation:
                                               normalise(imagenet), or all means and then all deviations

random, for training:

    inception_crop(S[,filter][,area=A:B])      a part of A to B of the area (0.05 to 1, the paper's), resized to S x S
    random_crop(S)  random_crop(H,W)           a part of that size, anywhere
    flip                                       mirrored or not
    randaug(LAYERS,MAGNITUDE)                  RandAugment, as in AugReg

Filters are Pillow's, which antialias (bilinear, bicubic, lanczos, box, hamming,
nearest), and `bilinear-plain`, TensorFlow's default, which does not: with it the authors trained and tested.
A string is names with words in brackets, divided by `|`: `parse` looks names up in `OPS`, and nothing is ever evaluated.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.core.errors import VitreousError, unknown_name
from vitreous.data.transforms.decode import PIXELS, ImageLike
from vitreous.data.transforms.image import FILTERS, PLAIN, ImageData, open_image_data, to_bytes, to_tensor
from vitreous.data.transforms.ops import (
    RANDOM_OPS,
    CentralCrop,
    Flip,
    InceptionCrop,
    Normalise,
    Op,
    Pad,
    RandAugment,
    RandomCrop,
    Range,
    Resize,
    ResizeSmall,
    Scale,
)
from vitreous.data.transforms.randaugment import check_randaugment


class _OpArguments:
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
        if sizes[0] * sizes[-1] > PIXELS:
            raise self.fail(f"makes more than {PIXELS:,} pixels")
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
            raise unknown_name("filter", names[0], (*FILTERS, PLAIN))
        return names[0] if names else "bilinear"

    def option(self, name: str) -> str | None:
        """What follows `name=`; it is taken away."""
        given = [word for word in self.words if word.startswith(f"{name}=")]
        self.words = [word for word in self.words if word not in given]
        if len(given) > 1:
            raise self.fail(f"has {name}= twice")
        return given[0].partition("=")[2] if given else None

    def numbers(self, count: int | None = None) -> tuple[float, ...]:
        try:
            numbers = tuple(float(word) for word in self.words)
        except ValueError:
            raise self.fail("takes numbers") from None
        if (count is not None and len(numbers) != count) or not all(np.isfinite(numbers)):
            raise self.fail(f"takes {count} finite numbers")
        return numbers


def _resize_small(a: _OpArguments) -> Op:
    floor = a.flag("floor")
    return ResizeSmall(*a.pair(), a.filter(), floor)


def _central_crop(a: _OpArguments) -> Op:
    rounded = a.flag("round")
    if len(a.words) != len(a.sizes()):
        raise a.fail("takes one size or height,width")
    return CentralCrop(*a.pair(), rounded)


def _pad(a: _OpArguments) -> Op:
    if len(a.words) != 1 or len(a.sizes()) != 1:
        raise a.fail("takes one margin in pixels, such as 4")
    return Pad(a.sizes()[0])


def _random_crop(a: _OpArguments) -> Op:
    if len(a.words) != len(a.sizes()):
        raise a.fail("takes one size or height,width")
    return RandomCrop(*a.pair())


def _inception_crop(a: _OpArguments) -> Op:
    area = a.option("area")
    match = re.fullmatch(r"(\d*\.?\d+):(\d*\.?\d+)", area if area is not None else "0.05:1")
    if not match or not 0 < float(match[1]) <= float(match[2]) <= 1:
        raise a.fail("the area is written area=0.05:1, two shares of the image, the smaller first")
    height, width = a.pair()
    return InceptionCrop(height, width, float(match[1]), float(match[2]), a.filter())


def _flip(a: _OpArguments) -> Op:
    if a.words:
        raise a.fail("takes nothing")
    return Flip()


def _randaug(a: _OpArguments) -> Op:
    layers, magnitude = a.numbers(2)
    if layers != int(layers):
        raise a.fail("takes a whole number of layers and a magnitude, such as randaug(2,10)")
    check_randaugment(int(layers), magnitude)
    return RandAugment(int(layers), magnitude)


def _normalise(a: _OpArguments) -> Op:
    if a.words == ["imagenet"]:
        return Normalise()
    numbers = a.numbers()
    if not numbers or len(numbers) % 2:
        raise a.fail("takes as many deviations as means")
    half = len(numbers) // 2
    if min(numbers[half:]) <= 0:
        raise a.fail("deviations must be positive")
    return Normalise(numbers[:half], numbers[half:])


OPS: dict[str, Callable[[_OpArguments], Op]] = {
    "resize": lambda a: Resize(*a.pair(), a.filter()),
    "resize_small": _resize_small,
    "central_crop": _central_crop,
    "pad": _pad,
    "random_crop": _random_crop,
    "inception_crop": _inception_crop,
    "flip": _flip,
    "randaug": _randaug,
    "range": lambda a: Range(*a.numbers(2)),
    "normalise": _normalise,
}
MOST_OPS, MOST_CHARACTERS = 32, 4_000  # a string may come from a file; 64 means and deviations take 2,600 characters
_FIXING = (Resize, CentralCrop, RandomCrop, InceptionCrop)  # whatever came before, every image then has this size
_CALL = re.compile(r"\s*([a-z_]+)\s*(?:\(([^()|]*)\))?\s*")


def parse(text: str) -> tuple[Op, ...]:
    """The ops that a string names."""
    if len(text) > MOST_CHARACTERS or text.count("|") >= MOST_OPS:
        raise VitreousError(
            f"preprocessing {text[:40]!r}...: at most {MOST_OPS} steps and {MOST_CHARACTERS:,} characters are possible"
        )
    ops = []
    for part in text.split("|"):
        match = _CALL.fullmatch(part)
        if not match:
            raise VitreousError(
                f"preprocessing {text!r}: cannot read {part.strip()!r}; expected something like resize(224)|range(-1,1)"
            )
        name, inside = match[1], match[2] or ""
        if name not in OPS:
            raise unknown_name("preprocessing op", name, OPS)
        words = [word.strip() for word in inside.split(",")] if inside.strip() else []
        ops.append(OPS[name](_OpArguments(name, words)))
    return tuple(ops)


class Preprocess:
    """A parsed string: an image of any kind in, a tensor (C, H, W) out."""

    def __init__(self, text: str, channels: int = 3) -> None:
        self.ops = parse(text)
        self.channels = channels

    def __call__(self, image: ImageLike, rng: random.Random | None = None, place: str | None = None) -> Tensor:
        return self.scale(to_tensor(self.transform(image, rng, place)))

    def transform(
        self, image: ImageLike, rng: random.Random | None = None, place: str | None = None, *, quick: bool = False
    ) -> ImageData:
        """All operations but the last ones that only scale values. `quick` may differ by a shade: see `image`."""
        data = open_image_data(image, self.channels, place, quick)
        for op in self.ops[: len(self.ops) - len(self.scales)]:
            if not isinstance(op, RANDOM_OPS):
                data = op(data)
            elif rng is None:
                raise VitreousError(f"{op} is random, which is for training; evaluation needs a fixed string")
            else:
                data = op(data, rng)
        return data

    def write_pixels(self, out: NDArray[Any], data: ImageData) -> None:
        """What `transform` gave, as one image (C, H, W) of a shared buffer: uint8 where `eight_bit`, float32 otherwise."""
        out[...] = to_bytes(data).transpose(2, 0, 1) if self.eight_bit else to_tensor(data).numpy()

    def scale_into(self, out: NDArray[np.float32], pixels: NDArray[Any]) -> None:
        """The last operations, from one image (C, H, W) of a shared buffer into a batch, while it is in the cache."""
        out[...] = pixels
        for op in self.scales:
            op.in_place(out)

    def scale(self, pixels: Tensor) -> Tensor:
        """The last operations, on one image (C, H, W) or many (B, C, H, W)."""
        for op in self.scales:
            pixels = op.on_tensor(pixels)
        return pixels

    @property
    def scales(self) -> tuple[Scale, ...]:
        """The last operations, as far as they only scale values."""
        last: list[Scale] = []
        for op in reversed(self.ops):
            if not isinstance(op, (Range, Normalise)):
                break
            last.insert(0, op)
        return tuple(last)

    @property
    def random(self) -> bool:
        """Whether any op is random: a string for training."""
        return any(isinstance(op, RANDOM_OPS) for op in self.ops)

    @property
    def eight_bit(self) -> bool:
        """Whether pixels have 8 bits until the last operations, which scale them."""
        return not any(isinstance(op, (Range, Normalise)) for op in self.ops[: len(self.ops) - len(self.scales)]) and not any(
            isinstance(op, (Resize, ResizeSmall)) and op.filter == PLAIN for op in self.ops
        )

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
        """Height and width of what comes out, where every image comes out alike."""
        for at in reversed(range(len(self.ops))):
            op = self.ops[at]
            if isinstance(op, _FIXING):
                margins = _sum_margins(self.ops[at:])
                return op.height + margins, op.width + margins
            if isinstance(op, ResizeSmall):
                return None
        return None

    def at(self, height: int, width: int) -> Preprocess:
        """The same for another size of output; margins, and a resize before a crop, grow in proportion."""
        if self.size in (None, (height, width)):
            return self
        old_height, old_width = self.size
        last = max(at for at, op in enumerate(self.ops) if isinstance(op, _FIXING))
        # Margins around what comes out are whole pixels on both sides, so they go first and the image takes the rest.
        # The smaller proportion is theirs: else the margins of an image twice as wide would leave nothing of its height.
        outer = min(height / old_height, width / old_width)
        after = tuple(_scale_pad(op, outer) if isinstance(op, Pad) else op for op in self.ops[last + 1 :])
        old_height, old_width = old_height - _sum_margins(self.ops[last:]), old_width - _sum_margins(self.ops[last:])
        new_height, new_width = height - _sum_margins(after), width - _sum_margins(after)
        if min(new_height, new_width) < 1:
            raise VitreousError(f"preprocessing {self}: in {height} x {width} pixels, its margins leave no room for an image")
        larger = max(new_height / old_height, new_width / old_width)

        def scaled(op: Op) -> Op:
            if isinstance(op, (*_FIXING, ResizeSmall)):
                return replace(
                    op, height=round(op.height * new_height / old_height), width=round(op.width * new_width / old_width)
                )
            if isinstance(op, Pad):
                return _scale_pad(op, larger)
            return op

        return Preprocess("|".join(str(op) for op in (*map(scaled, self.ops[: last + 1]), *after)), self.channels)


def _sum_margins(ops: tuple[Op, ...]) -> int:
    """What they add to the height and to the width."""
    return sum(2 * op.margin for op in ops if isinstance(op, Pad))


def _scale_pad(pad: Pad, factor: float) -> Pad:
    return replace(pad, margin=max(1, round(pad.margin * factor)))
