"""Images on their way through the preprocessing: crop, resize, pad and flip, whichever form the pixels have.

An image (`ImageData`) has one of four forms:

    Image      a Pillow image: exact, what evaluation uses
    JPEG       a file that is not decoded yet; the first crop and resize decide at which scale it is
    array      8 bits, height x width x channels: what a JPEG becomes, and what an array of pixels stays
    Tensor     floating point (C, H, W), in 0..255 to begin with

The quick way (`JPEG`) decodes at a half, a quarter or an eighth where what remains is still at least `GAP` times as large
as what is asked for, and resizes with torch's vectorised kernel. Without scaling its pixels are within 1 of 255 levels of
Pillow's; with it, their mean difference is a quarter of a level (docs/reference/preprocessing.md).
"""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.decode import PIXELS, ImageLike, check_scans, decode, open_image, raise_bad_image

try:
    import simplejpeg
except ImportError:  # the extra `fast`; Pillow decodes to the same pixels, in more time
    simplejpeg = None

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
PLAIN = "bilinear-plain"
_QUICK_FILTERS = ("bilinear", "bicubic")
GAP = 1.5  # 1.0 would be a fifth faster, and three times as far from the exact way
Box: TypeAlias = tuple[int, int, int, int]  # top, left, height, width


@dataclass(frozen=True, eq=False)
class JPEG:
    """A JPEG file whose size is known and whose pixels are not."""

    content: bytes = field(repr=False)
    height: int  # upright
    width: int
    orientation: int  # EXIF's, 1 to 8
    place: str

    def resized(self, box: Box, height: int, width: int, how: str) -> NDArray[np.uint8]:
        """The part in the box at that size, from the smallest decoding that is at least GAP times as large."""
        scale = 1
        while scale < 8 and box[2] >= 2 * scale * GAP * height and box[3] >= 2 * scale * GAP * width:
            scale *= 2
        if scale == 1:
            return _resize_quickly(self.part(box), height, width, how)
        # The box no longer falls on whole pixels; Pillow takes fractions, and at this size is quick enough.
        top, left, bottom, right = (edge / scale for edge in (box[0], box[1], box[0] + box[2], box[1] + box[3]))
        y, x = int(top), int(left)
        around = self._upright(scale)[y : math.ceil(bottom), x : math.ceil(right)]
        limits = (left - x, top - y, min(right - x, around.shape[1]), min(bottom - y, around.shape[0]))
        image = Image.fromarray(np.ascontiguousarray(around))
        return np.array(image.resize((width, height), FILTERS[how], box=limits))

    def part(self, box: Box) -> NDArray[np.uint8]:
        top, left, height, width = box
        return self._upright(1)[top : top + height, left : left + width]

    def _upright(self, scale: int) -> NDArray[np.uint8]:
        stored = (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)
        whole = _decode_jpeg(self.content, *stored, scale, self.place)
        return whole if self.orientation == 1 else _UPRIGHT[self.orientation](whole)


ImageData: TypeAlias = Image.Image | JPEG | NDArray[np.uint8] | Tensor

# What brings stored pixels upright, by EXIF orientation.
_UPRIGHT: dict[int, Any] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: a.transpose(1, 0, 2)[::-1],
}


def open_image_data(image: ImageLike, channels: int, place: str | None, quick: bool) -> ImageData:
    """The image to begin with. `quick` puts off the decoding of JPEG files, and leaves pixels what they are."""
    if quick and isinstance(image, np.ndarray) and image.dtype == np.uint8:
        pixels = image[:, :, None] if image.ndim == 2 else image
        if pixels.ndim == 3 and pixels.shape[2] == channels in (1, 3):
            return pixels.copy()  # it may be a view of a file, which torch would warn of
    if quick and channels == 3 and isinstance(image, bytes) and image[:2] == b"\xff\xd8":
        jpeg = _open_jpeg(image, place or f"{len(image):,} bytes")
        if jpeg is not None:
            return jpeg
    return decode(image, channels, place)


def _open_jpeg(content: bytes, place: str) -> JPEG | None:
    """None for the kinds of JPEG that need Pillow's care."""
    head = content[: _find_header_end(content)]
    if simplejpeg is not None and b"Exif" not in head and b"Orientation" not in head:
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(content, strict=False)
        except (ValueError, KeyError):  # the latter for a colour space that it does not know
            return None
        plain, orientation = colours in ("YCbCr", "Gray"), 1
    else:
        with raise_bad_image(place), open_image(content, place) as image:
            plain, orientation = image.mode in ("RGB", "L"), image.getexif().get(0x0112, 1)
            width, height = image.size
    if not plain or orientation not in range(1, 9) or height * width > PIXELS // 2:  # of large ones `decode` checks more
        return None
    check_scans(content, height * width, place)
    if orientation >= 5:
        height, width = width, height
    return JPEG(content, height, width, orientation, place)


def _find_header_end(content: bytes) -> int:
    """Where the notes end and the compressed image begins."""
    at = 2
    while at + 4 <= len(content) and content[at] == 0xFF and content[at + 1] != 0xDA:
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big") if content[at + 1] != 0xFF else 1
    return at


def _decode_jpeg(content: bytes, height: int, width: int, scale: int, place: str) -> NDArray[np.uint8]:
    """The whole file as RGB, at one scale-th; Pillow decides what can be read."""
    if simplejpeg is not None:
        least = {"min_height": -(-height // scale), "min_width": -(-width // scale), "min_factor": 1}
        with contextlib.suppress(ValueError):
            return np.asarray(simplejpeg.decode_jpeg(content, "RGB", **least))
    with raise_bad_image(place), Image.open(io.BytesIO(content)) as image:
        if scale > 1:
            image.draft("RGB", (width // scale, height // scale))
        return np.array(image.convert("RGB"))


def size_of(image: ImageData) -> tuple[int, int]:
    """Height and width."""
    if isinstance(image, Tensor):
        return image.shape[1], image.shape[2]
    if isinstance(image, np.ndarray):
        return image.shape[0], image.shape[1]
    return image.height, image.width


def crop(image: ImageData, box: Box) -> ImageData:
    top, left, height, width = box
    if isinstance(image, JPEG):
        return image.part(box)
    if isinstance(image, np.ndarray):
        return image[top : top + height, left : left + width]
    if isinstance(image, Tensor):
        return image[:, top : top + height, left : left + width]
    return image.crop((left, top, left + width, top + height))


def resize(image: ImageData, height: int, width: int, how: str, box: Box | None = None) -> ImageData:
    """The part in the box (or all of it), resized to that size. No filter sees beyond the box."""
    if isinstance(image, JPEG) and how in _QUICK_FILTERS:
        return image.resized(box or (0, 0, image.height, image.width), height, width, how)
    if box:
        image = crop(image, box)
    if how == PLAIN:
        pixels = to_tensor(image)
        if tuple(pixels.shape[1:]) == (height, width):
            return pixels
        return F.interpolate(pixels[None], size=(height, width), mode="bilinear", align_corners=False)[0]
    if isinstance(image, Tensor):
        raise VitreousError(f"a resize with filter {how!r} must come before range, normalise and {PLAIN} resizes")
    if size_of(image) == (height, width):
        return image
    if isinstance(image, np.ndarray) and how in _QUICK_FILTERS:
        return _resize_quickly(image, height, width, how)
    return to_image(image).resize((width, height), FILTERS[how])


def _resize_quickly(pixels: NDArray[np.uint8], height: int, width: int, how: str) -> NDArray[np.uint8]:
    if pixels.shape[:2] == (height, width):
        return pixels
    tensor = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
    small = F.interpolate(tensor, size=(height, width), mode=how, antialias=True)
    return np.asarray(small[0].permute(1, 2, 0))


def pad(image: ImageData, margin: int) -> ImageData:
    """With so many black pixels around it."""
    if isinstance(image, Tensor):
        raise VitreousError(
            "pad must come before range, normalise and bilinear-plain resizes: it adds black, which is 0 of 255"
        )
    pixels = to_bytes(image)
    height, width, channels = pixels.shape
    around = np.zeros((height + 2 * margin, width + 2 * margin, channels), np.uint8)  # np.pad takes more than ten times as long
    around[margin : margin + height, margin : margin + width] = pixels
    return around


def flip(image: ImageData) -> ImageData:
    if isinstance(image, Tensor):
        return image.flip(2)
    if isinstance(image, np.ndarray):
        return image[:, ::-1]
    return to_image(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def to_image(image: ImageData) -> Image.Image:
    """As a Pillow image; a tensor's values lose their fraction, as when the authors cast to uint8."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, JPEG):
        return decode(image.content, place=image.place)
    array = to_bytes(image)
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def to_bytes(image: ImageData) -> NDArray[np.uint8]:
    """Height x width x channels, 8 bits; often a view with other strides, which is not copied for its looks."""
    if isinstance(image, Tensor):
        return image.clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    array = image if isinstance(image, np.ndarray) else np.asarray(to_image(image))
    return array if array.ndim == 3 else array[:, :, None]


def to_tensor(image: ImageData) -> Tensor:
    """Channels first, in floating point."""
    if isinstance(image, Tensor):
        return image
    array = np.array(image if isinstance(image, np.ndarray) else to_image(image), dtype=np.float32)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None]).permute(2, 0, 1)
