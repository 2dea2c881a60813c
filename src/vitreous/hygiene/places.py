"""Where the doctor may write, found out before the long work begins."""

from __future__ import annotations

import os
from pathlib import Path

from vitreous.errors import VitreousError


def check_writable(option: str, path: Path) -> None:
    """Whether a file or folder of this name can be made: the folder above it is there, or can be, and lets one write."""
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        raise VitreousError(f"{option} {path}: {above} is no folder, so nothing can be written in it; choose another place")
    if not os.access(above, os.W_OK | os.X_OK):
        raise VitreousError(f"{option} {path}: {above} may not be written to; choose another place")
