"""From an image file to pixels: orientation honoured, every mode brought to the channels a model wants.

    greyscale, palette, CMYK      converted            16 bits per pixel   scaled to 8, not clipped
    alpha                         laid over white      animated            the first frame
    EXIF orientation              turned upright       more than PIXELS    refused: a small file can claim any size

A file that cannot be read is a `BadImage`, which says what kind of bad it is and which file; nothing is put in its place.
"""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vitreous.errors import VitreousError, one_line

ImageLike: TypeAlias = str | Path | bytes | Image.Image | NDArray[np.uint8]
Kind: TypeAlias = Literal["missing", "empty-file", "not-an-image", "unreadable", "too-large"]

PIXELS = 178_956_970  # where Pillow, too, takes a file for a decompression bomb: half a gigabyte of RGB
FILE_BYTES = 3 * PIXELS  # no file of that many pixels needs more; a larger one is not read


class BadImage(VitreousError):
    """An image that cannot be read."""

    def __init__(self, place: str, kind: Kind, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place, self.kind, self.why = place, kind, why

    def __reduce__(self) -> tuple[type[BadImage], tuple[str, Kind, str]]:  # it comes out of worker processes
        return BadImage, (self.place, self.kind, self.why)


def decode(image: ImageLike, channels: int = 3, place: str | None = None) -> Image.Image:
    """A picture with 3 (RGB) or 1 (grey) channels and 8 bits, upright. `place` names it in errors."""
    if channels not in (1, 3):
        raise VitreousError(f"an image file gives 1 or 3 channels, not {channels}; pass a preprocessed tensor instead")
    if isinstance(image, np.ndarray):
        return from_array(image, channels)
    if isinstance(image, Image.Image):
        return to_channels(image, channels)
    if not isinstance(image, (str, Path, bytes)):
        raise VitreousError(f"expected an image, its path or its bytes, not {type(image).__name__}")
    place = place or (f"{len(image):,} bytes" if isinstance(image, bytes) else str(image))
    with reading(place), open_image(image, place) as opened:
        load_upright(opened)
        return to_channels(opened, channels)


def load_upright(opened: Image.Image) -> int:
    """Read the pixels and turn them upright; gives the EXIF orientation that they had, 1 to 8."""
    orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)  # first: reading a TIFF turns it and drops the note
    opened.load()
    ImageOps.exif_transpose(opened, in_place=True)  # in place: otherwise it copies pictures that need no turning
    return orientation if orientation in range(1, 9) else 1


@contextlib.contextmanager
def reading(place: str) -> Iterator[None]:
    """Whatever goes wrong inside is a BadImage: on broken files Pillow's readers raise errors of a dozen kinds."""
    try:
        with warnings.catch_warnings():  # what they warn of is the doctor's business
            warnings.simplefilter("ignore")
            yield
    except (VitreousError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise BadImage(place, "missing", "no such image; check the path") from error
    except UnidentifiedImageError as error:
        raise BadImage(place, "not-an-image", "not an image that Pillow can read; replace it or leave it out") from error
    except Image.DecompressionBombError as error:
        raise _too_large(place, str(error)) from error
    except Exception as error:
        raise BadImage(place, "unreadable", f"broken image ({one_line(error)}); replace it or leave it out") from error


def open_image(image: str | Path | bytes, place: str) -> Image.Image:
    """The file's header, read; its pixels are not yet."""
    with reading(place):
        if not isinstance(image, bytes) and Path(image).is_dir():
            raise BadImage(place, "not-an-image", "is a folder, not an image; rename it or leave it out")
        size = len(image) if isinstance(image, bytes) else Path(image).stat().st_size
        if size == 0:
            raise BadImage(place, "empty-file", "an empty file; replace it or leave it out")
        check_file_size(place, size)
        opened = Image.open(io.BytesIO(image) if isinstance(image, bytes) else image, formats=_formats())
        if opened.width * opened.height > PIXELS:
            opened.close()
            raise _too_large(place, f"{opened.width} x {opened.height}")
    return opened


@functools.cache
def _formats() -> tuple[str, ...]:
    """All that Pillow reads but EPS, which is a program: its reader hands the file to Ghostscript to be run."""
    Image.preinit()  # the common ones first: they are tried in this order
    Image.init()
    return tuple(name for name in Image.ID if name != "EPS")


def check_file_size(place: str, size: int) -> None:
    """Before a file is read whole."""
    if size > FILE_BYTES:
        raise BadImage(place, "too-large", f"too large a file for an image ({size:,} bytes; at most {FILE_BYTES:,})")


def _too_large(place: str, size: str) -> BadImage:
    return BadImage(place, "too-large", f"too many pixels to be safe ({size}; at most {PIXELS:,}); make it smaller")


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:  # see-through parts lie over white
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "RGB" if channels == 3 else "L"
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """More than 8 bits of grey, scaled; Pillow's own conversion clips, which turns such pictures white."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    highest = values.max(initial=0.0)
    if image.mode.startswith("I;16") or image.format == "PPM":  # Pillow brings these to 16 bits
        top = 65535.0
    elif image.mode == "F" and highest <= 1:
        top = 1.0
    else:  # 32 bits, in which people store 8 or 16
        top = 255.0 if highest <= 255 else max(65535.0, highest)
    return Image.fromarray(np.round(np.clip(values, 0, top) * (255.0 / top)).astype(np.uint8))


def from_array(array: NDArray[np.uint8], channels: int) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise VitreousError(
            f"array of {array.dtype} with shape {array.shape}: expected uint8, height x width x 3 (or grey, height x width)"
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return to_channels(Image.fromarray(array), channels)
