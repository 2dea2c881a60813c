"""Hashes of files and of lists of words, by which changes and damage are noticed."""

from __future__ import annotations

import hashlib
from pathlib import Path


def hash_file(path: Path, kind: str = "sha256") -> str:
    """The hexadecimal digest of a file, read in pieces; an OSError if it cannot be read."""
    with path.open("rb") as file:
        # md5 tells damage here, not malice: some data sets' authors have published no other.
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def hash_words(*words: object) -> str:
    """SHA-256 of the words as text, each ended from the next by a zero byte. Names of files need not be valid Unicode."""
    return hashlib.sha256("\0".join(map(str, words)).encode(errors="surrogatepass")).hexdigest()
