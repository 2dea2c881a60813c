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
from collections.abc import Iterable
from pathlib import PurePath

from PIL import Image, ImageFile, _imaging

HEIC = (".heic", ".heif", ".hif")
_NO_PIXELS = ("MPEG",)  # recognised by Pillow, and never decoded
_TOLD = 5  # extensions and names in a note


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
    """EPS is a program, for Ghostscript to run; stubs (WMF, GRIB, HDF5 ...) wait for a reader that somebody registers."""
    reader = Image.OPEN[name][0]
    return name == "EPS" or (isinstance(reader, type) and issubclass(reader, ImageFile.StubImageFile))


@functools.cache
def suffixes() -> frozenset[str]:
    """How the names of image files end, in lower case."""
    read = {*formats(), "MPO"}  # which has no reader of its own: the one of JPEG gives its first image
    return frozenset(suffix.lower() for suffix, name in Image.registered_extensions().items() if name in read)


def is_image_name(name: str) -> bool:
    return name[name.rfind(".") :].lower() in suffixes() if "." in name else False


def describe_left_out(paths: Iterable[str], count: int, by_suffix: Counter[str] | None = None) -> str:
    """How many files, with which extensions, and the first names: `7 files (.txt 4, .heic 3): a.txt, b.heic and 5 more`."""
    first = list(paths)
    kinds = Counter(map(suffix_of, first)) if by_suffix is None else by_suffix
    listed = ", ".join(f"{suffix or 'no extension'} {number:,}" for suffix, number in kinds.most_common(_TOLD))
    more = f" and {count - _TOLD:,} more" if count > _TOLD else ""
    others = ", ..." if len(kinds) > _TOLD else ""
    remedy = "; to read HEIC, `pip install pillow-heif`" if any(suffix in kinds for suffix in HEIC) else ""
    return f"{count:,} file{'s' * (count != 1)} ({listed}{others}): {', '.join(first[:_TOLD])}{more}{remedy}"


def suffix_of(path: str) -> str:
    return PurePath(path).suffix.lower()


class LeftOutFiles:
    """Counts the files that a search passes over because of their names."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []
        self._by_suffix: Counter[str] = Counter()

    def add(self, path: str) -> None:
        self.count += 1
        self._by_suffix[suffix_of(path)] += 1
        if len(self._first) < _TOLD:
            self._first.append(path)

    def notes(self) -> tuple[str, ...]:
        if not self.count:
            return ()
        return (f"left out because of their names: {describe_left_out(self._first, self.count, self._by_suffix)}",)


def _silence_libtiff() -> None:
    """libtiff prints its errors to the terminal from C, beside the exception that Pillow raises. This switches its printing
    off for the process; where libtiff's functions cannot be reached (Windows), its lines stay."""
    try:
        library = ctypes.CDLL(_imaging.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetErrorHandlerExt"):
            function = getattr(library, name)
            function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
            function(None)
    except (OSError, AttributeError):
        pass
