"""Image corruptions at five strengths: brightness, blur, JPEG, crop, resolution; deterministic.

Each is done to the decoded image, before any preprocessing, at five strengths. Blur is measured by the image's own size,
and resolution by what the model takes in: a photograph of 4,000 pixels that is halved still has more than the model sees.
JPEG's blocks are 8 pixels wide whatever the size of the image, so a large photograph suffers less, as it does in life.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from vitreous.data.source import Content, Source, View
from vitreous.data.transforms.decode import decode
from vitreous.data.transforms.ops import Resize, ResizeSmall
from vitreous.data.transforms.parse import Preprocess


def brightness(image: Image.Image, factor: float, side: int) -> Image.Image:
    """Every value times the factor; what becomes brighter than white is white."""
    return ImageEnhance.Brightness(image).enhance(factor)


def blur(image: Image.Image, percent: float, side: int) -> Image.Image:
    """A Gaussian whose standard deviation is so many hundredths of the shorter side."""
    return image.filter(ImageFilter.GaussianBlur(min(image.size) * percent / 100))


def jpeg(image: Image.Image, quality: float, side: int) -> Image.Image:
    """Stored as JPEG at that quality, and read again."""
    stored = io.BytesIO()
    image.save(stored, "JPEG", quality=int(quality))
    with Image.open(io.BytesIO(stored.getvalue())) as read:
        return read.convert(image.mode)


def crop(image: Image.Image, percent: float, side: int) -> Image.Image:
    """The middle, with about so many hundredths of the height and of the width: as much is cut on either side, or an image
    of few pixels would be moved too."""
    across, down = (min((length - 1) // 2, round(length * (100 - percent) / 200)) for length in image.size)
    return image.crop((across, down, image.width - across, image.height - down))


def resolution(image: Image.Image, percent: float, side: int) -> Image.Image:
    """Made smaller, until the shorter side is so many hundredths of what the model takes in; never larger."""
    scale = side * percent / 100 / min(image.size)
    if scale >= 1:
        return image
    width, height = (max(1, round(length * scale)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BOX)


@dataclass(frozen=True)
class Corruption:
    name: str
    along: str  # what the strength counts
    strengths: tuple[float, ...]  # from the weakest to the strongest, but in their natural order where there are two sides
    untouched: float | None  # the strength that changes nothing, where there is one
    apply: Callable[[Image.Image, float, int], Image.Image]


CORRUPTIONS = (
    Corruption("brightness", "brightness, as a factor", (0.25, 0.5, 0.75, 1.5, 2.0), 1.0, brightness),
    Corruption("blur", "blur, % of the shorter side", (0.5, 1.0, 2.0, 4.0, 8.0), 0.0, blur),
    Corruption("JPEG quality", "JPEG quality", (50.0, 30.0, 20.0, 10.0, 5.0), None, jpeg),
    Corruption("crop", "part kept, % of each side", (90.0, 80.0, 70.0, 60.0, 50.0), 100.0, crop),
    Corruption("resolution", "shorter side, % of the model's input", (75.0, 50.0, 35.0, 25.0, 12.5), None, resolution),
)


class Corrupted(View):
    """The same images after something befell them. Workers do it, on their way to the model."""

    def __init__(self, parent: Source, corruption: Corruption, strength: float, preprocess: Preprocess) -> None:
        super().__init__(parent)
        self.corruption, self.strength, self.channels = corruption, strength, preprocess.channels
        self.side = min(preprocess.size or (224, 224))
        # Preprocessing that only cuts needs images of the size they had.
        self.same_size = not any(isinstance(op, (Resize, ResizeSmall)) for op in preprocess.ops)

    def read(self, index: int) -> Content:
        image = decode(self.parent.read(index), self.channels, self.place(index))
        changed = self.corruption.apply(image, self.strength, self.side)
        if self.same_size and changed.size != image.size:
            changed = changed.resize(image.size, Image.Resampling.BILINEAR)
        return np.asarray(changed)
