"""Predicted masks over their images, beside the annotated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from vitreous.evaluation.dense import IGNORED
from vitreous.inspection.figure_style import drawn, save
from vitreous.inspection.figures_maps import draw_panels
from vitreous.inspection.file_names import unique_stems

_STRENGTH = 0.55  # of a colour over the image


@dataclass(frozen=True, eq=False)
class MaskExample:
    name: str
    image: NDArray[np.uint8]  # (height, width, 3)
    truth: NDArray[np.int64]  # (height, width)
    predicted: NDArray[np.int64]


def draw_masks(examples: Sequence[MaskExample], classes: int, folder: Path) -> None:
    """`masks.png` and `.svg`, all of them; `predicted/IMAGE.png`, each prediction over its image."""
    save(plot_masks(examples, classes), folder, "masks")
    place = folder / "predicted"
    place.mkdir()
    for stem, example in zip(unique_stems([example.name for example in examples]), examples, strict=True):
        Image.fromarray(colour_mask(example.image, example.predicted, classes)).save(place / f"{stem}.png")


@drawn
def plot_masks(examples: Sequence[MaskExample], classes: int) -> Figure:
    """Image, annotated mask and predicted mask, side by side."""

    def panels(index: int, seen: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        example, size = examples[index], (seen.shape[1], seen.shape[0])
        found = [colour_mask(example.image, mask, classes) for mask in (example.truth, example.predicted)]
        return [np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS)) for pixels in found]

    caption = "Each class has a colour; what is ignored has none."
    headings = ["test image", "annotated", "predicted"]
    images, names = [example.image for example in examples], [example.name for example in examples]
    return draw_panels("Masks from patch features", caption, headings, images, panels, names)


def colour_mask(image: NDArray[np.uint8], mask: NDArray[np.int64], classes: int) -> NDArray[np.uint8]:
    """The image, coloured by class; pixels that are ignored stay as they are."""
    palette = (255 * np.asarray(matplotlib.colormaps["tab10" if classes <= 10 else "tab20"].colors)).astype(np.float64)  # type: ignore[attr-defined]
    colours = palette[np.maximum(mask, 0) % len(palette)]
    strength = np.where(mask == IGNORED, 0.0, _STRENGTH)[..., None]
    return np.rint(image * (1 - strength) + colours * strength).astype(np.uint8)
