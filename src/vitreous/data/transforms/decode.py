"""Decode an image file to pixels: upright, in the channels that a model takes, and within limits of memory and time.

    greyscale, palette, CMYK      converted            16 bits per pixel   scaled to 8, not clipped
    alpha                         laid over white      animated            the first frame
    EXIF orientation              turned upright       more than PIXELS    refused: a small file can claim any size

A small file (under a megabyte) is also refused if decoding it would take more than a gigabyte or far more time than its
size explains: solid images compress a million times, and a few bytes make a JPEG decoder pass over all pixels again.

A file that cannot be read is a `BadImage`, which says what kind of bad it is and which file; nothing is put in its place.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vitreous.core.errors import VitreousError, one_line
from vitreous.data.transforms.image_formats import formats

ImageLike: TypeAlias = str | Path | bytes | Image.Image | NDArray[np.uint8]
Kind: TypeAlias = Literal["missing", "empty-file", "not-an-image", "unreadable", "too-large"]

PIXELS = 178_956_970  # where Pillow, too, takes a file for a decompression bomb: half a gigabyte of RGB
FILE_BYTES = 3 * PIXELS  # no file of that many pixels needs more; a larger one is not read
SIDE = 1 << 20  # Pillow keeps 8 bytes for each row, however short
MEMORY = 1 << 30  # bytes that a small file may take while it is decoded
EXPANSION = 1000  # bytes of memory, or pixels of effort, that each byte of a file may ask for beyond that
SLOW_PIXELS = 1 << 22  # by decoders that are written in Python and take a microsecond for each
_BAND = 1 << 18  # pixels that are converted at once

# Bytes for each pixel that decoders take beyond the image itself, measured on images of 16 million pixels.
_DECODER_BYTES = {"WEBP": 13, "AVIF": 9, "JPEG2000": 21, "QOI": 5, "DDS": 5, "SGI": 2}
_PROGRESSIVE_BYTES = 6


class BadImage(VitreousError):
    """An image that cannot be read."""

    def __init__(self, place: str, kind: Kind, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place, self.kind, self.why = place, kind, why

    def __reduce__(self) -> tuple[type[BadImage], tuple[str, Kind, str]]:  # it comes out of worker processes
        return BadImage, (self.place, self.kind, self.why)


def decode(image: ImageLike, channels: int = 3, place: str | None = None) -> Image.Image:
    """An image with 3 (RGB) or 1 (grey) channels and 8 bits, upright. `place` names it in errors."""
    if channels not in (1, 3):
        raise VitreousError(f"an image file gives 1 or 3 channels, not {channels}; pass a preprocessed tensor instead")
    if isinstance(image, np.ndarray):
        return from_array(image, channels)
    if isinstance(image, Image.Image):
        return to_channels(image, channels)
    if not isinstance(image, (str, Path, bytes)):
        raise VitreousError(f"expected an image, its path or its bytes, not {type(image).__name__}")
    if not isinstance(image, bytes):
        place = place or str(image)
        image = read_image_file(image, place)
    place = place or f"{len(image):,} bytes"
    with raise_bad_image(place), open_image(image, place) as opened:
        load_upright(opened)
        return to_channels(opened, channels)


def read_image_file(path: str | Path, place: str) -> bytes:
    """The bytes of an image file; a BadImage if they cannot be had."""
    with raise_bad_image(place):
        check_file(path, place)
        return Path(path).read_bytes()


def check_file(path: str | Path, place: str) -> int:
    """The length of an image file, before it is opened."""
    status = os.stat(path)  # noqa: PTH116  (called for every image of every epoch)
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
        what = "is a folder, not an image" if stat.S_ISDIR(status.st_mode) else "is not a file"
        raise BadImage(place, "not-an-image", f"{what}; rename it or leave it out")
    if status.st_size > FILE_BYTES:
        why = f"too large a file for an image ({status.st_size:,} bytes; at most {FILE_BYTES:,})"
        raise BadImage(place, "too-large", why)
    return status.st_size


def load_upright(opened: Image.Image) -> int:
    """Read the pixels and turn them upright; gives the EXIF orientation that they had, 1 to 8."""
    orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)  # first: reading a TIFF turns it and drops the note
    opened.load()
    ImageOps.exif_transpose(opened, in_place=True)  # in place: otherwise it copies images that need no turning
    return orientation if orientation in range(1, 9) else 1


class _WithoutWarnings:
    """`warnings.catch_warnings` for threads: the first one in silences Python's warnings, the last one out restores them."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = warnings.catch_warnings()
                self._before.__enter__()
                warnings.simplefilter("ignore")

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before.__exit__(None, None, None)


without_warnings = _WithoutWarnings()


@contextlib.contextmanager
def raise_bad_image(place: str) -> Iterator[None]:
    """Whatever goes wrong inside is a BadImage: on broken files Pillow's readers raise errors of a dozen kinds."""
    try:
        with without_warnings:  # what they warn of is the doctor's business
            yield
    except (VitreousError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise BadImage(place, "missing", "no such image; check the path") from error
    except UnidentifiedImageError as error:
        raise BadImage(place, "not-an-image", "not an image that Pillow can read; replace it or leave it out") from error
    except Image.DecompressionBombError as error:
        raise _too_large_error(place, str(error)) from error
    except Exception as error:
        why = f"broken image ({one_line(error)}); replace it or leave it out"
        if isinstance(error, OSError) and error.strerror:  # the system's, not Pillow's
            why = f"cannot be read ({error.strerror})"
        raise BadImage(place, "unreadable", why) from error


def open_image(image: bytes | Path, place: str) -> Image.Image:
    """The file's header, read; its pixels are not yet."""
    with raise_bad_image(place):
        length = len(image) if isinstance(image, bytes) else check_file(image, place)
        if not length:
            raise BadImage(place, "empty-file", "an empty file; replace it or leave it out")
        opened = Image.open(io.BytesIO(image) if isinstance(image, bytes) else image, formats=formats())
        try:
            _check_size(opened, length, place)
            if opened.format in ("JPEG", "MPO") and isinstance(image, bytes):
                check_scans(image, opened.width * opened.height, place)
        except BaseException:
            opened.close()
            raise
    return opened


def _check_size(opened: Image.Image, length: int, place: str) -> None:
    """From the header: whether decoding is safe, whatever the file holds."""
    width, height = opened.size
    pixels = width * height
    if pixels > PIXELS or max(width, height) > SIDE:
        raise _too_large_error(place, f"{width} x {height}")
    if pixels * _bytes_per_pixel(opened) > max(MEMORY, EXPANSION * length):
        raise BadImage(
            place,
            "too-large",
            f"{length:,} bytes that decode to {width} x {height} pixels ({opened.format}, {opened.mode}) and take more than a "
            f"gigabyte; make it smaller",
        )
    tiles = getattr(opened, "tile", None) or ()
    if pixels > max(SLOW_PIXELS, length) and any(tile[0] in Image.DECODERS for tile in tiles):
        why = f"{length:,} bytes that claim {width} x {height} pixels in a slow format ({opened.format}); save it as PNG"
        raise BadImage(place, "too-large", why)


def _bytes_per_pixel(opened: Image.Image) -> int:
    """While it is decoded, turned and converted."""
    stored = 1 if opened.mode in ("1", "L", "P") else 2 if opened.mode.startswith("I;16") else 4
    decoder = stored if opened.format == "TIFF" else _DECODER_BYTES.get(opened.format or "", 0)  # a strip may be all of it
    if opened.info.get("progressive"):
        decoder += _PROGRESSIVE_BYTES
    again = 4 if opened.mode != "RGB" or "exif" in opened.info else 0
    return stored + decoder + again


def check_scans(content: bytes, pixels: int, place: str) -> None:
    """A few bytes for each scan make the decoder of JPEG pass over the whole image again."""
    scans = content.count(b"\xff\xda")  # no other FF DA is in compressed data
    if scans * pixels > max(2 * PIXELS, EXPANSION * len(content)):
        why = f"a JPEG of {len(content):,} bytes with {scans:,} scans of {pixels:,} pixels; save it again, not progressive"
        raise BadImage(place, "too-large", why)


def _too_large_error(place: str, size: str) -> BadImage:
    limits = f"at most {PIXELS:,}, and {SIDE:,} a side"
    return BadImage(place, "too-large", f"too many pixels to be safe ({size}; {limits}); make it smaller")


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    mode = "RGB" if channels == 3 else "L"
    deep = image.mode.startswith("I;16") or image.mode in ("I", "F")
    transparent = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    if not (deep or transparent):
        return image if image.mode == mode else image.convert(mode)
    top = _find_white_level(image) if deep else 0.0
    out = Image.new(mode, image.size)
    for band, at in _iterate_bands(
        image
    ):  # a part at a time: whole, the steps between would take several times the image's memory
        if deep:
            band = _scale_to_8_bits(band, top)
        if transparent:  # see-through parts lie over white
            band = band.convert("RGBA")
            band = Image.alpha_composite(Image.new("RGBA", band.size, "white"), band)
        out.paste(band.convert(mode), (0, at))
    return out


def _iterate_bands(image: Image.Image) -> Iterator[tuple[Image.Image, int]]:
    """Rows of the image, a few at a time, and where they begin."""
    rows = max(1, _BAND // max(1, image.width))
    for at in range(0, image.height, rows):
        yield image.crop((0, at, image.width, min(at + rows, image.height))), at


def _find_white_level(image: Image.Image) -> float:
    """The value that becomes 255."""
    if image.mode.startswith("I;16") or image.format == "PPM":  # Pillow brings these to 16 bits
        return 65535.0
    highest = max((_read_values(band).max(initial=0.0) for band, _ in _iterate_bands(image)), default=0.0)
    if image.mode == "F" and highest <= 1:
        return 1.0
    return 255.0 if highest <= 255 else max(65535.0, float(highest))  # 32 bits, in which people store 8 or 16


def _read_values(image: Image.Image) -> NDArray[np.float64]:
    return np.nan_to_num(np.asarray(image, dtype=np.float64))


def _scale_to_8_bits(image: Image.Image, top: float) -> Image.Image:
    """More than 8 bits of grey, scaled; Pillow's own conversion clips, which turns such images white."""
    return Image.fromarray(np.round(np.clip(_read_values(image), 0, top) * (255.0 / top)).astype(np.uint8))


def from_array(array: NDArray[np.uint8], channels: int) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise VitreousError(
            f"array of {array.dtype} with shape {array.shape}: expected uint8, height x width x 3 (or grey, height x width)"
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return to_channels(Image.fromarray(array), channels)
