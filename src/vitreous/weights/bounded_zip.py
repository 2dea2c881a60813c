"""Open untrusted zip archives with every size checked before memory is allocated."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

# What Python's zipfile raises at damaged or hostile archives: bad sums, unknown versions and methods, passwords, names.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError)

_SPARE, _RATIO = 64 << 20, 16  # weights hardly compress; what unpacks to far more than it weighs is a bomb
_MEMBERS = 100_000


def open_zip(path: Path) -> zipfile.ZipFile:
    """A BadZipFile where its members would unpack to more than weights can."""
    archive = zipfile.ZipFile(path)
    entries, size = archive.infolist(), path.stat().st_size
    # Also for members that are not compressed: several may share the same bytes.
    total = sum(entry.file_size for entry in entries)
    if total > _SPARE + _RATIO * size or len(entries) > _MEMBERS:
        raise zipfile.BadZipFile(f"{len(entries):,} members would unpack {size / 1e6:,.1f} MB to {total / 1e6:,.0f} MB")
    return archive
