"""Figures of patch features: which patches are similar, and their principal components as colours."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw

from vitreous.inspection.checked_arrays import check_finite
from vitreous.inspection.figure_style import SIMILAR, drawn
from vitreous.inspection.figures_maps import draw_panels
from vitreous.inspection.patches import component_colours

Place = tuple[int, int]


@drawn
def plot_patch_components(
    images: Sequence[NDArray[np.uint8]], components: ArrayLike, names: Sequence[str] | None = None
) -> Figure:
    """Images and the first three principal components of their patch features, as colours.

    Args:
        images: as the model saw them, uint8 (height, width, 3) each
        components: (images, rows, columns, 3), as `patch_components` gives them
        names: one for each image, written below it
    """
    colours = component_colours(components)
    caption = (
        "The first three principal components of patch features as red, green and blue, fitted over all images together: "
        "equal colours are similar features, in one image or in two."
    )
    return draw_panels(
        "What the model tells apart",
        caption,
        ["input", "patch features"],
        images,
        lambda index, seen: [enlarge_patches(colours[index], seen.shape[0], seen.shape[1])],
        names,
    )


@drawn
def plot_patch_similarity(
    images: Sequence[NDArray[np.uint8]],
    maps: Sequence[ArrayLike],
    places: Sequence[Sequence[Place]],
    names: Sequence[str] | None = None,
) -> Figure:
    """How similar all patches of an image are to some of its patches, which are framed.

    Args:
        images: as the model saw them, uint8 (height, width, 3) each
        maps: of each image (places, rows, columns): `patch_similarity` of these places
        places: row and column of these patches, the same number in each image
        names: one for each image, written below it
    """
    values = [check_finite(own, "patch similarity", ("places", "rows", "columns")) for own in maps]
    caption = (
        "Cosine similarity of patch features with those of the framed patch: 1 is yellow, dark is the lowest value of the map. "
        "The second frame is the patch least similar to the first, the third the one least similar to both."
    )

    def panels(index: int, seen: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        size = seen.shape[0], seen.shape[1]
        return [
            frame_patch(enlarge_patches(similarity_colours(own), *size), place, own.shape)
            for own, place in zip(values[index], places[index], strict=True)
        ]

    headings = ["input", *(f"patch {number + 1}" for number in range(len(places[0])))]
    return draw_panels("Which patches are similar", caption, headings, images, panels, names)


def similarity_colours(similarity: NDArray[np.floating]) -> NDArray[np.uint8]:
    """A map (rows, columns) in colours, from its lowest value to 1."""
    low = min(float(similarity.min()), 1 - 1e-6)
    coloured = matplotlib.colormaps[SIMILAR]((similarity - low) / (1 - low), bytes=True)
    return np.asarray(coloured[..., :3], np.uint8)


def enlarge_patches(colours: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Colours (rows, columns, 3) at an image's size, each patch a block."""
    return np.asarray(Image.fromarray(colours).resize((width, height), Image.Resampling.NEAREST))


def frame_patch(pixels: NDArray[np.uint8], place: Place, grid: tuple[int, ...]) -> NDArray[np.uint8]:
    """The patch in this row and column with a frame around it, white with a dark edge: seen on every colour."""
    image = Image.fromarray(pixels)
    tall, wide = image.height / grid[0], image.width / grid[1]
    left, top = round(place[1] * wide), round(place[0] * tall)
    box = left, top, round((place[1] + 1) * wide) - 1, round((place[0] + 1) * tall) - 1
    line = max(2, image.width // 150)
    draw = ImageDraw.Draw(image)
    draw.rectangle([box[0] - line - 1, box[1] - line - 1, box[2] + line + 1, box[3] + line + 1], outline="black")
    draw.rectangle([box[0] - line, box[1] - line, box[2] + line, box[3] + line], outline="white", width=line)
    return np.asarray(image)
