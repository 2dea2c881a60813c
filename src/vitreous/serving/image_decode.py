"""From the bytes of an untrusted upload to pixels of the model's size, preprocessed as everywhere else.

Only common formats are tried: of the dozens that Pillow knows, one runs another program. Size and effort are read off the
header before anything is decoded.
"""

from __future__ import annotations

import ctypes
import io
import math
import threading
from contextlib import suppress

from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from vitreous.core.errors import VitreousError, one_line
from vitreous.data.transforms.decode import without_warnings
from vitreous.data.transforms.image import to_tensor
from vitreous.data.transforms.image_formats import formats
from vitreous.data.transforms.ops import ResizeSmall
from vitreous.data.transforms.parse import Preprocess
from vitreous.serving.http_errors import ErrorResponse, from_input_error
from vitreous.serving.limits import Limits

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
SCANS = 16  # passes over all pixels that a JPEG of the largest size may ask for; writers make about ten
LARGE = 16_000_000  # pixels, more than most cameras have; while it is converted, such an image may take 16 bytes for each
_large = threading.Lock()  # one of them at a time
_SMALLER = "make it smaller (the server's limit is --max-pixels)"


def raw_pixels(content: bytes, preprocess: Preprocess, limits: Limits) -> Tensor:
    """(C, H, W) as the model wants it but for the last scaling, `preprocess.finished`, which is done for a whole batch."""
    try:
        with without_warnings, Image.open(io.BytesIO(content), formats=_formats()) as opened:
            _check(opened, content, preprocess, limits)
            if opened.width * opened.height <= LARGE:
                return _decoded(opened, preprocess)
            with _large:
                try:
                    return _decoded(opened, preprocess)
                finally:
                    opened.close()
                    _trim_memory()
    except (ErrorResponse, MemoryError):
        raise
    except VitreousError as error:  # too small for a crop, for one
        raise from_input_error(error) from None
    except UnidentifiedImageError:
        names = ", ".join(_formats())
        raise ErrorResponse(
            422, "not an image in a known format", f"send one of {names}; a URL or path is never opened"
        ) from None
    except Image.DecompressionBombError as error:
        raise ErrorResponse(413, f"too many pixels ({one_line(error, 100)})", _SMALLER) from None
    except Exception as error:  # on broken files Pillow's readers raise errors of a dozen kinds
        raise ErrorResponse(
            422, f"broken image ({one_line(error, 100)})", "it may have been truncated on the way; send it again"
        ) from None


def _decoded(opened: Image.Image, preprocess: Preprocess) -> Tensor:
    opened.load()
    ImageOps.exif_transpose(opened, in_place=True)
    return to_tensor(preprocess.transform(opened))


def _trim_memory() -> None:
    """Return free memory to the system: glibc keeps what large images leave behind, for each thread by itself."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _formats() -> list[str]:
    """Those that this Pillow was built with."""
    known = formats()
    return [name for name in FORMATS if name in known]


def _check(opened: Image.Image, content: bytes, preprocess: Preprocess, limits: Limits) -> None:
    width, height = opened.size
    size, pixels = f"{width} x {height}", width * height
    if pixels > limits.pixels:
        raise ErrorResponse(413, f"too many pixels ({size}; at most {limits.pixels / 1e6:g} million)", _SMALLER)
    if pixels == 0:
        raise ErrorResponse(422, f"an image without pixels ({size})", "send another one")
    for op in preprocess.ops:  # bringing the shorter side to 256 would make gigapixels of a line
        if isinstance(op, ResizeSmall) and math.prod(op.size_for(height, width)) > limits.pixels:
            raise ErrorResponse(
                422, f"an image of {size} is too long and thin", "cut it into parts that are nearer to a square"
            )
    # A few bytes for each scan make the decoder pass over the whole image again. No other FF DA is in compressed data.
    if opened.format in ("JPEG", "MPO") and content.count(b"\xff\xda") * pixels > SCANS * limits.pixels:
        raise ErrorResponse(422, "a JPEG with too many scans", "save it again, not progressive or with the usual scans")
