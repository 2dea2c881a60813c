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
    SizedOp,
)
from vitreous.data.transforms.randaugment import check_randaugment


class _OpArguments:
    """The words between the brackets of one op. Each method takes away what it reads; what is left over is an error."""

    def __init__(self, op: str, words: list[str]) -> None:
        self.text, self.words = f"{op}({','.join(words)})", words
        self.known: list[str] = []  # words that this op takes

    def fail(self, why: str) -> VitreousError:
        return VitreousError(f"preprocessing {self.text}: {why}")

    def take(self, *known: str) -> str | None:
        """The first of these words that is there."""
        self.known += known
        found = next((word for word in self.words if word in known), None)
        if found is not None:
            self.words.remove(found)
        return found

    def check_empty(self) -> None:
        for word in self.words:
            if self.known and word not in self.known:
                raise unknown_name(f"word in {self.text}:", word, self.known)
            raise self.fail(f"{word!r} is one too many")

    def sizes(self, most: int, meaning: str) -> list[int]:
        sizes = [int(word) for word in self.words if re.fullmatch(r"\d+", word)]
        if not 1 <= len(sizes) <= most or min(sizes) < 1 or max(sizes) > 65_536:
            raise self.fail(f"needs {meaning}, at least 1 pixel")
        self.words = [word for word in self.words if not re.fullmatch(r"\d+", word)]
        return sizes

    def size(self) -> tuple[int, int]:
        sizes = self.sizes(2, "a size such as 224, or height,width")
        if sizes[0] * sizes[-1] > PIXELS:
            raise self.fail(f"makes more than {PIXELS:,} pixels")
        return sizes[0], sizes[-1]

    def filter(self) -> str:
        return self.take(*FILTERS, PLAIN) or "bilinear"

    def area(self) -> tuple[float, float]:
        given = self.take(*(word for word in self.words if word.startswith("area="))) or "area=0.05:1"
        match = re.fullmatch(r"area=(\d*\.?\d+):(\d*\.?\d+)", given)
        if not match or not 0 < float(match[1]) <= float(match[2]) <= 1:
            raise self.fail("the area is written area=0.05:1, two shares of the image, the smaller first")
        return float(match[1]), float(match[2])

    def numbers(self, count: int | None = None) -> tuple[float, ...]:
        try:
            numbers = tuple(float(word) for word in self.words)
        except ValueError:
            raise self.fail("takes numbers") from None
        if (count is not None and len(numbers) != count) or not all(np.isfinite(numbers)):
            raise self.fail(f"takes {count or 'only'} finite numbers")
        self.words = []
        return numbers


def _randaug(a: _OpArguments) -> Op:
    layers, magnitude = a.numbers(2)
    if layers != int(layers):
        raise a.fail("takes a whole number of layers and a magnitude, such as randaug(2,10)")
    check_randaugment(int(layers), magnitude)
    return RandAugment(int(layers), magnitude)


def _normalise(a: _OpArguments) -> Op:
    if a.take("imagenet"):
        return Normalise()
    numbers = a.numbers()
    half = len(numbers) // 2
    if not numbers or len(numbers) % 2:
        raise a.fail("takes as many deviations as means")
    if min(numbers[half:]) <= 0:
        raise a.fail("deviations must be positive")
    return Normalise(numbers[:half], numbers[half:])


OPS: dict[str, Callable[[_OpArguments], Op]] = {
    "resize": lambda a: Resize(*a.size(), a.filter()),
    "resize_small": lambda a: ResizeSmall(*a.size(), a.filter(), bool(a.take("floor"))),
    "central_crop": lambda a: CentralCrop(*a.size(), bool(a.take("round"))),
    "pad": lambda a: Pad(*a.sizes(1, "one margin, such as 4")),
    "random_crop": lambda a: RandomCrop(*a.size()),
    "inception_crop": lambda a: InceptionCrop(*a.size(), *a.area(), a.filter()),
    "flip": lambda a: Flip(),
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
        arguments = _OpArguments(name, [word.strip() for word in inside.split(",")] if inside.strip() else [])
        ops.append(OPS[name](arguments))
        arguments.check_empty()
    return tuple(ops)


class Preprocess:
    """A parsed string: an image of any kind in, a tensor (C, H, W) out."""

    def __init__(self, text: str, channels: int = 3) -> None:
        self.ops, self.channels = parse(text), channels
        first = max((at + 1 for at, op in enumerate(self.ops) if not isinstance(op, Scale)), default=0)
        self.pixel_ops = self.ops[:first]
        self.scales = tuple(op for op in self.ops[first:] if isinstance(op, Scale))  # the last ops, which change values alone

    def __call__(self, image: ImageLike, rng: random.Random | None = None, place: str | None = None) -> Tensor:
        return self.scale(to_tensor(self.transform(image, rng, place)))

    def transform(
        self, image: ImageLike, rng: random.Random | None = None, place: str | None = None, *, quick: bool = False
    ) -> ImageData:
        """All operations but the last ones that only scale values. `quick` may differ by a shade: see `image`."""
        data = open_image_data(image, self.channels, place, quick)
        for op in self.pixel_ops:
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
        scaled = pixels.clone()
        for op in self.scales:
            op.in_place(scaled.numpy())
        return scaled

    @property
    def random(self) -> bool:
        """Whether any op is random: a string for training."""
        return any(isinstance(op, RANDOM_OPS) for op in self.ops)

    @property
    def eight_bit(self) -> bool:
        """Whether pixels have 8 bits until the last operations, which scale them."""
        plain = (op for op in self.ops if isinstance(op, (Resize, ResizeSmall)) and op.filter == PLAIN)
        return not any(isinstance(op, Scale) for op in self.pixel_ops) and not any(plain)

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
        last = max((at for at, op in enumerate(self.ops) if isinstance(op, SizedOp)), default=0)
        op, margins = self.ops[last], _sum_margins(self.ops[last:])
        return (op.height + margins, op.width + margins) if isinstance(op, _FIXING) else None

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
            if isinstance(op, SizedOp):
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
