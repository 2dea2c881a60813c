"""Masks: for each image a PNG of the same size whose pixel values are class numbers.

    photos/train/cat/a.jpg        photos/masks/train/cat/a.png

The folder of masks mirrors that of the images; a mask has its image's name with the ending .png. Grey and palette images are
read, whose values (or palette numbers) count as they are. 255 is ignored unless said otherwise, as in Pascal VOC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags

from vitreous.core.errors import VitreousError
from vitreous.core.output_dir import find_data_folder
from vitreous.core.progress import progress_bar
from vitreous.data.source import Policy, Source, Stream
from vitreous.data.transforms.decode import BadImage, open_image, raise_bad_image

FOLDER = "masks"
IGNORED = (255,)
HIGHEST = 255  # value of a pixel


@dataclass(frozen=True)
class Masks:
    """Masks of the images of one data set."""

    folder: Path
    ignored: tuple[int, ...]

    def path(self, id: str) -> Path:
        return self.folder / PurePosixPath(id.lstrip("/")).with_suffix(".png")  # a manifest may name images from the root

    def read(self, id: str) -> NDArray[np.uint8]:
        """Class numbers, (height, width)."""
        path = self.path(id)
        if not path.exists():
            raise VitreousError(f"{path}: missing, the mask of {id}; add it, or name their folder with --masks")
        with open_image(path, str(path)) as opened, raise_bad_image(str(path)):
            if opened.mode not in ("L", "P", "1", "I;16", "I"):
                raise VitreousError(f"{path}: a mask of mode {opened.mode}; save class numbers as a grey or palette PNG")
            values = np.asarray(opened)
        if values.max(initial=0) > HIGHEST:
            raise VitreousError(f"{path}: has the value {values.max()}; class numbers go from 0 to {HIGHEST}")
        return values.astype(np.uint8)

    def counts(self, id: str, size: tuple[int, int]) -> NDArray[np.int64]:
        """How often each value is in the mask of an image of this height and width, (256,); 0 for those that are ignored."""
        values = self.read(id)
        if values.shape != size:
            (tall, wide), (height, width) = values.shape, size
            raise VitreousError(
                f"{self.path(id)}: a mask of {tall} x {wide} pixels for an image of {height} x {width}; make them of one size"
            )
        found = np.bincount(values.ravel(), minlength=HIGHEST + 1)
        found[list(self.ignored)] = 0
        return found


def parse_ignored(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()] if text != "none" else []
    if not all(word.isascii() and word.isdigit() and int(word) <= HIGHEST for word in words):
        raise VitreousError(f"--ignore {text}: write pixel values of masks, as 255 or 3,255, or none")
    return tuple(sorted({int(word) for word in words}))


def find_masks(data: str, masks: Path | None, ignored: Sequence[int]) -> Masks:
    """The folder that was named, or `masks` in the folder of the data."""
    inside = find_data_folder(data)
    folder = masks or (inside / FOLDER if inside is not None else None)
    if folder is None:
        raise VitreousError(f"{data}: no folder, so its masks are not beside it; name their folder with --masks")
    if not folder.is_dir():
        option = f"--masks {masks}" if masks else str(folder)
        raise VitreousError(f"{option}: no such folder; PNG masks lie there as the images do in theirs (see --masks)")
    return Masks(folder, tuple(ignored))


def without_masks(source: Source | Stream, masks: Masks, data: str) -> Source:
    """The images themselves: masks that lie inside the data were found as images, too."""
    if not isinstance(source, Source):
        raise VitreousError(f"{data}: shards have no masks beside their images; give a folder or a manifest")
    folder = find_data_folder(data)
    if folder is None or not masks.folder.resolve().is_relative_to(folder.resolve()):
        return source
    inner = masks.folder.resolve().relative_to(folder.resolve()).as_posix() + "/"
    kept = [index for index in range(len(source)) if not source.id(index).startswith(inner)]
    return source if len(kept) == len(source) else source.subset(kept)


def check_masks(masks: Masks, source: Source, bad_images: Policy) -> NDArray[np.int64]:
    """Reads every mask once, before any model runs; gives how many pixels of each value there are, (images, 256)."""
    found = np.zeros((len(source), HIGHEST + 1), np.int64)
    with progress_bar(f"checking masks of {source.where} {source.split}", len(source)) as advance:
        for index in range(len(source)):
            try:
                size = _upright_size(source, index)
            except BadImage:
                if bad_images == "stop":
                    raise
            else:
                found[index] = masks.counts(source.id(index), size)
            advance(1)
    return found


def _upright_size(source: Source, index: int) -> tuple[int, int]:
    """Height and width, from the header of its file."""
    path = source.path(index)
    if path is None:
        raise VitreousError(f"{source.where}: its images are no files, which could have masks beside them; give a folder")
    with open_image(Path(path), path) as opened, raise_bad_image(path):
        turned = opened.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
        return (opened.width, opened.height) if turned else (opened.height, opened.width)
