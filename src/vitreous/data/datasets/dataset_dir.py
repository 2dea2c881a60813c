"""The directory in which the files of one data set are looked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitreous.core.errors import VitreousError


class MissingFiles(VitreousError):
    """Files of the data set are not in the directory; elsewhere they may be, or they can be fetched."""


@dataclass(frozen=True)
class DatasetDir:
    name: str  # of the data set
    where: str  # what the user typed
    root: Path

    def find(self, *names: str) -> Path | None:
        """The first of these that exists. Names are relative to the root and have slashes; an empty one is the root."""
        return next((path for path in (self.root / name for name in names) if path.exists()), None)

    def need(self, *names: str) -> Path:
        """The same; an error that names the first if there is none."""
        found = self.find(*names)
        if found is None:
            raise MissingFiles(f"{self.where}: no {names[0]} in {self.root}")
        return found

    def base(self, sign: str, *folders: str) -> Path | None:
        """The root, or the first of these folders in it, that holds `sign`. People unpack archives at either level."""
        return next((path for path in (self.root / name for name in ("", *folders)) if (path / sign).exists()), None)


def text_lines(path: Path) -> list[str]:
    """The lines of a label file that say something."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise VitreousError(f"{path}: cannot be read as text ({error}); replace it by the original") from error
    return [line.strip() for line in lines if line.strip()]
