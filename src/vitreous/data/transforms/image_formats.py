"""Which image formats are read: whatever this Pillow has a reader for, but those that it hands to other programs.

HEIC and HEIF are read where the package pillow-heif is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from PIL import Image, ImageFile, _imaging

HEIC = (".heic", ".heif", ".hif")
_NO_PIXELS = ("MPEG",)  # recognised by Pillow, and never decoded
_LISTED = 5  # extensions and names in a note


@functools.cache
def formats() -> tuple[str, ...]:
    """Pillow's names of them, the common ones first: they are tried in this order."""
    _silence_libtiff()
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # its errors are raised, too; without a handler they are printed
    Image.preinit()
    Image.init()
    with contextlib.suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    return tuple(name for name in Image.ID if name not in _NO_PIXELS and not _needs_other_program(name))


def _needs_other_program(name: str) -> bool:
    """EPS is a program, for Ghostscript to run; stubs (WMF, GRIB, HDF5 ...) wait for a reader to be registered."""
    reader = Image.OPEN[name][0]
    return name == "EPS" or (isinstance(reader, type) and issubclass(reader, ImageFile.StubImageFile))


@functools.cache
def suffixes() -> frozenset[str]:
    """How the names of image files end, in lower case."""
    read = {*formats(), "MPO"}  # which has no reader of its own: the one of JPEG gives its first image
    return frozenset(suffix.lower() for suffix, name in Image.registered_extensions().items() if name in read)


def is_image_name(name: str) -> bool:
    return name[name.rfind(".") :].lower() in suffixes() if "." in name else False


def describe_left_out(paths: Sequence[str], count: int) -> str:
    """How many files, with which extensions, and the first names: `7 files (.txt 4, .heic 3): a.txt, b.heic and 5 more`."""
    kinds = Counter(PurePath(path).suffix.lower() for path in paths)
    listed = ", ".join(f"{suffix or 'no extension'} {number:,}" for suffix, number in kinds.most_common(_LISTED))
    others = ", ..." if len(kinds) > _LISTED else ""
    remedy = "; to read HEIC, `pip install pillow-heif`" if any(suffix in kinds for suffix in HEIC) else ""
    names = ", ".join(paths[:_LISTED]) + (f" and {count - _LISTED:,} more" if count > _LISTED else "")
    return f"left out because of their names: {count:,} file{'s' * (count != 1)} ({listed}{others}): {names}{remedy}"


def _silence_libtiff() -> None:
    """libtiff prints its errors to the terminal from C, beside the exception that Pillow raises. This switches its printing
    off for the process; where libtiff's functions cannot be reached (Windows), its lines stay."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(_imaging.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetErrorHandlerExt"):
            function = getattr(library, name)
            function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
            function(None)
