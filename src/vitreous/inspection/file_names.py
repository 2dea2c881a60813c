"""Safe, unique file names derived from untrusted image names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath, PureWindowsPath

_LONGEST = 100  # bytes, so that an ending and a number fit on every file system
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}  # on Windows


def unique_stems(names: Sequence[str]) -> list[str]:
    """`photos/cat.jpg` gives `cat`, a second cat `cat-2`. None leaves the folder it is put in, on any system."""
    return number_repeated(map(safe_stem, names))


def number_repeated(names: Iterable[str]) -> list[str]:
    """The same names; one that was there before gets a number.

    Compared without case: on some systems `Cat.npy` would write over `cat.npy`.
    """
    taken: dict[str, str] = {}
    for name in names:
        chosen, number = name, 1
        while chosen.casefold() in taken:
            number += 1
            chosen = f"{name}-{number}"
        taken[chosen.casefold()] = chosen
    return list(taken.values())


def safe_stem(name: str) -> str:
    """The name without folders and ending, in letters, digits, dots, dashes and underscores."""
    stem = PurePosixPath(PureWindowsPath(name).as_posix()).stem
    stem = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", stem.encode("utf-8", "replace").decode()))
    stem = stem.encode()[:_LONGEST].decode(errors="ignore").strip("._-")  # hidden files and options begin with these
    if not stem:
        return "image"
    return f"image-{stem}" if stem.partition(".")[0].casefold() in _RESERVED else stem
