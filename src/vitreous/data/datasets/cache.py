"""A cache of what is made from original files once: unpacked archives, arrays that can be memory-mapped.

The directory that holds the originals is only ever read, so that it may belong to another user. What was made lies in
<cache>/prepared/NAME-HASH; the hash is of the originals' paths, sizes and dates, so that a changed file is noticed.
A process that is killed leaves a folder that the next one deletes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from vitreous.core.errors import VitreousError
from vitreous.core.files import beside, cache_dir, locked

_VERSION = 2  # of what is made


def prepare_once(name: str, files: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills from `files`; made now if it was not before, by one process alone."""
    target = cache_dir() / "prepared" / f"{name}-{_hash_originals(files)}"
    if target.is_dir():
        return target
    part = beside(target, ".part")
    try:
        with locked(beside(target, ".lock")):
            if not target.is_dir():  # else another process made it while this one waited
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                try:
                    make(part)
                    if hasattr(os, "sync"):
                        os.sync()  # after a power cut, too, a folder of this name is whole
                    os.replace(part, target)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise VitreousError(
            f"{target}: cannot be made ({error.strerror or error}); make room, or set VITREOUS_CACHE to another folder"
        ) from error
    return target


def _hash_originals(files: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{_VERSION}".encode())
    for path in files:
        found = path.stat()
        digest.update(f"\0{path.resolve()}\0{found.st_size}\0{found.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
