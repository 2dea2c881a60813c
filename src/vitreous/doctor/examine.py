"""Examine one item: everything the doctor records of a file, from one read of its bytes.

Images are decoded small (JPEG decoders can do that while they read, and still read every byte), so statistics are those
of an image whose shorter side has about REDUCED pixels. Pillow lets some damage pass without a word: the checksums of a
PNG are compared here, and where `simplejpeg` is installed, what its library only warns of is heard.
"""

from __future__ import annotations

import functools
import hashlib
import re
import warnings
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from PIL import ExifTags, Image

from vitreous.core.errors import one_line
from vitreous.data.source import Content
from vitreous.data.transforms.decode import BadImage, from_array, load_upright, open_image, to_channels

try:
    import simplejpeg
except ImportError:  # it is an extra
    simplejpeg = None

REDUCED = 128  # pixels of the shorter side: enough for fingerprints, and an eighth of the work on a large photograph


@dataclass(frozen=True, eq=False)
class Examination:
    digest: bytes = bytes(16)  # of the content; zeros where it could not be had
    problem: str = ""  # the kind of finding; "" for an image that can be used
    why: str = ""
    odd: str = ""  # what decoders let pass, though it should not be there
    format: str = ""
    mode: str = ""
    width: int = 0  # as one sees it: upright
    height: int = 0
    orientation: int = 1
    frames: int = 1
    misnamed: bool = False
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)  # of the pixels, 0..255
    deviation: tuple[float, ...] = (0.0, 0.0, 0.0)
    image: Image.Image | None = None  # upright, RGB, reduced; None where there is none


def examine(content: Content, name: str) -> Examination:
    """`name` is the item's id: its suffix says what the content ought to be."""
    if isinstance(content, np.ndarray):
        return _examine_pixels(content)
    digest = hashlib.blake2b(content, digest_size=16).digest()
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = _examine_file(content, name)
    except BadImage as bad:
        return Examination(digest, bad.kind, bad.why)
    except MemoryError:  # the machine's fault, not the file's
        raise
    except Exception as error:  # foreign bytes make decoders raise anything, struct.error and KeyError among it
        problem = "truncated" if "truncated" in str(error).lower() else "unreadable"
        return Examination(digest, problem, f"broken image ({one_line(error)}); replace it or leave it out")
    odd = found.pop("odd", "") or (one_line(heard[0].message) if heard else "")
    return Examination(digest, odd=odd, **found)


def _examine_pixels(pixels: Any) -> Examination:
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    height, width = pixels.shape[:2]
    image = _reduce(from_array(pixels, 3))
    mean, deviation = _statistics(image)
    mode = "L" if pixels.ndim == 2 or pixels.shape[2] == 1 else "RGB" if pixels.shape[2] == 3 else "RGBA"
    return Examination(digest.digest(), mode=mode, width=width, height=height, mean=mean, deviation=deviation, image=image)


def _examine_file(data: bytes, name: str) -> dict[str, Any]:
    with open_image(data, name) as opened:
        found: dict[str, Any] = {"format": opened.format or "", "mode": opened.mode}
        jpeg = opened.format in ("JPEG", "MPO")
        found["misnamed"] = _is_misnamed(name, found["format"])
        size = opened.size
        image = None
        if jpeg:
            image = _decode_jpeg_strictly(data, opened, found)
            found["odd"] = found.get("odd", "") or _find_trailing_data(data, opened.format == "MPO")
        elif opened.format == "PNG":
            _check_png(data, found)
        if image is None:
            if jpeg:
                opened.draft(None, (REDUCED, REDUCED))
            image = opened
        found["orientation"] = load_upright(image)  # as `decode` does: what it refuses must be refused here
        if not jpeg:
            size = image.size
        elif found["orientation"] >= 5:
            size = size[::-1]
        plain = image.mode in ("RGB", "L") and "transparency" not in image.info
        image = to_channels(_reduce(image), 3) if plain else _reduce(to_channels(image, 3))
        if not jpeg:  # an MPO's others are previews, not an animation
            found["frames"] = _count_frames(data, name, found)
    found["width"], found["height"] = size
    found["mean"], found["deviation"] = _statistics(image)
    found["image"] = image
    return found


def _count_frames(data: bytes, name: str, found: dict[str, Any]) -> int:
    """Counted in a file opened again: that may fail or leave the reader at another frame, and only the first one is used."""
    try:
        with open_image(data, name) as again:
            return getattr(again, "n_frames", 1)
    except MemoryError:
        raise
    except Exception as error:
        found["odd"] = found.get("odd", "") or f"frames behind the first are broken ({one_line(error)})"
        return 1


def _reduce(image: Image.Image) -> Image.Image:
    factor = min(image.size) // REDUCED
    return image.reduce(factor) if factor > 1 else image


def _statistics(image: Image.Image) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """From the histogram: a tenth of the time that the pixels themselves would take."""
    counts = np.asarray(image.histogram(), np.float64).reshape(3, 256)
    counts /= counts.sum(axis=1, keepdims=True)
    levels = np.arange(256.0)
    mean = counts @ levels
    deviation = np.sqrt(np.maximum(counts @ levels**2 - mean**2, 0))
    return tuple(mean.tolist()), tuple(deviation.tolist())


# What decoders do not tell ----------------------------------------------------------------------------------------------------


def _decode_jpeg_strictly(data: bytes, opened: Image.Image, found: dict[str, Any]) -> Image.Image | None:
    """The image, if libjpeg had nothing to complain of. Else its complaint is noted, and Pillow decides."""
    if simplejpeg is None or opened.mode not in ("RGB", "L"):
        return None
    colours = "RGB" if opened.mode == "RGB" else "GRAY"
    try:
        pixels = simplejpeg.decode_jpeg(data, colours, min_height=REDUCED, min_width=REDUCED)
    except ValueError as error:
        complaint = one_line(error)
        if "extraneous bytes" in complaint:  # padding, as a rule; every pixel is there
            found["odd"] = complaint
        elif complaint.startswith("Corrupt JPEG data"):
            found["problem"], found["why"] = "damaged", f"parts of the image are spoilt ({complaint}); replace it"
        return None  # an unsupported kind, or truncated: Pillow says so itself
    image = _reduce(Image.fromarray(pixels) if colours == "RGB" else Image.fromarray(pixels[:, :, 0]).convert("RGB"))
    if ExifTags.Base.Orientation in opened.getexif():
        image.info = opened.info  # how to turn it
    return image


def _find_trailing_data(data: bytes, several: bool) -> str:
    """Bytes behind the end of the image, another image among them, unless the file says that it holds `several`."""
    end = data.rfind(b"\xff\xd9") + 2 if several else _jpeg_end(data)
    return "data follow the end of the image" if end is not None and data[end:].strip(b"\0") else ""


_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # neither a stuffed FF, nor a filling one, nor a restart


def _jpeg_end(data: bytes) -> int | None:
    """Where the first image ends. Segments are stepped over: a preview among the notes has an end of its own."""
    position = 2
    while found := _MARKER.search(data, position):
        position, marker = found.end(), found[1][0]
        if marker == 0xD9:
            return position
        if marker not in (0x01, 0xD8):  # those two have no length
            position += int.from_bytes(data[position : position + 2], "big")
    return None


def _check_png(data: bytes, found: dict[str, Any]) -> None:
    """Every chunk's checksum, which Pillow passes over where the pixels are."""
    view, position = memoryview(data), 8
    while position + 12 <= len(data):
        length = int.from_bytes(view[position : position + 4], "big")
        end = position + 12 + length
        name = bytes(view[position + 4 : position + 8])
        if end > len(data):
            break  # truncated; the decoder says so if pixels are missing
        if zlib.crc32(view[position + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            readable = name.decode("ascii", "backslashreplace")
            found["problem"], found["why"] = "damaged", f"checksum of PNG chunk {readable} is wrong; replace it"
            return
        if name == b"IEND":
            found["odd"] = "data follow the end of the image" if data[end:].strip(b"\0") else ""
            return
        position = end
    found["odd"] = "the closing chunk is missing"


@functools.cache
def _format_of_suffix() -> dict[str, str]:
    Image.init()
    return dict(Image.registered_extensions())


_ALIKE = {"MPO": "JPEG", "DIB": "BMP", "APNG": "PNG"}


def _is_misnamed(name: str, found: str) -> bool:
    expected = _format_of_suffix().get(PurePosixPath(name).suffix.lower())
    return expected is not None and _ALIKE.get(expected, expected) != _ALIKE.get(found, found)
