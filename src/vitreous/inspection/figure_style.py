"""The style of all figures and how they are saved, independent of pyplot and user settings."""

from __future__ import annotations

import functools
import itertools
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib import font_manager, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitreous.core.files import atomic_file
from vitreous.core.printable import printable

DPI = 144  # twice what a screen is said to have, so that a figure is sharp where screens have more
INK, QUIET, FAINT = "#1d2129", "#5d6675", "#dcd9d0"  # those of the pages
COLOURS = ("#2457a6", "#c0622d", "#1e7b34", "#8a3f9b", "#a4791f", "#0f7c84", "#b03a5b", "#5a5f66")  # told apart by all eyes
SIMILAR = "viridis"  # the paper's colours of similarity

_WIDE_FONTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Arial Unicode MS")
_HEAD, _CAPTION, _LINE = 11.0, 8.5, 1.35  # points, points, and heights of a line
_POINT = DPI / 72  # pixels
_LETTER = 0.5  # of its height is a letter wide, on the average of a sentence; digits and capitals are wider

MARGIN = 24  # pixels around a sheet

P = ParamSpec("P")


def drawn(function: Callable[P, Figure]) -> Callable[P, Figure]:
    """A function that draws in our look, whatever the caller's settings."""

    @functools.wraps(function)
    def in_our_look(*args: P.args, **options: P.kwargs) -> Figure:
        with look():
            return function(*args, **options)

    return in_our_look


@contextmanager
def look() -> Iterator[None]:
    ours: Any = {
        "font.size": 9,
        "font.family": _families(),
        "text.color": INK,
        "text.parse_math": False,  # a $ in a class's name is a $
        "axes.edgecolor": QUIET,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": _CAPTION,
        "svg.fonttype": "none",  # words stay words: a tenth of the size, and they can be searched and read aloud
        "svg.hashsalt": "vitreous",  # equal figures are equal files
    }
    # Where no font of the machine has a letter, an empty box stands for it; a warning for each would drown the rest.
    with style.context("default"), matplotlib.rc_context(ours), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ ", UserWarning)
        yield


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """NAME.png and NAME.svg, each whole or not at all; the same figure gives the same bytes."""
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    with look():
        for path, metadata in zip(paths, (None, {"Date": None}), strict=True):
            with atomic_file(path) as part:
                figure.savefig(part, format=path.suffix[1:], dpi=DPI, facecolor="white", metadata=metadata)
    return paths


def chart(
    title: str, width: int = 1060, height: int = 640, *, left: int = 104, top: int = 88, right: int = 32, bottom: int = 84
) -> tuple[Figure, Axes]:
    """One pair of axes with a quiet grid, in pixels. Its place is fixed, so that it is the same however often it is drawn."""
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height))
    figure.text(left / width, 1 - (MARGIN - 4) / height, title, fontsize=_HEAD, va="top")
    axes.grid(True)
    return figure, axes


def legend_above(axes: Axes, columns: int = 3) -> None:
    """Between title and axes, where it hides nothing."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.4, borderpad=0, handletextpad=0.5,
            handlelength=1.8, columnspacing=1.4,
        )  # fmt: skip


@dataclass(frozen=True)
class Sheet:
    """A figure laid out in pixels from the top left, so that images on it are not resampled."""

    figure: Figure
    width: int
    height: int
    top: int  # where title and caption end

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Below title and caption; `top` counts from there."""
        bottom = self.height - self.top - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))

    def draw_image(self, pixels: NDArray[np.uint8], left: int, top: int) -> Axes:
        """Pixel by pixel; the axes count the image's pixels."""
        height, width = pixels.shape[:2]
        axes = self.axes(left, top, width, height)
        axes.imshow(pixels, extent=(0, width, height, 0), interpolation="nearest", aspect="auto")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, pad=4)
        axes.set(xticks=[], yticks=[])
        return axes

    def words(self, text: str, left: float, top: float, **options: Any) -> None:
        settings = {"va": "top", "fontsize": _CAPTION, **options}
        self.figure.text(left / self.width, 1 - (self.top + top) / self.height, text, **settings)


def sheet(title: str, caption: str, width: int, height: int, least: int = 760) -> Sheet:
    """With room for so many pixels below title and caption, which are broken into lines."""
    whole = max(width + 2 * MARGIN, least)
    inner = whole - 2 * MARGIN
    heads = textwrap.wrap(title, max(10, int(inner / (_HEAD * _POINT * _LETTER))))
    captions = textwrap.wrap(caption, max(10, int(inner / (_CAPTION * _POINT * _LETTER))))
    title_height = round(len(heads) * _HEAD * _POINT * _LINE)
    caption_height = round(len(captions) * _CAPTION * _POINT * _LINE)
    top = MARGIN - 4 + title_height + caption_height + 16
    tall = top + height + MARGIN
    figure = Figure(figsize=(whole / DPI, tall / DPI), dpi=DPI)
    FigureCanvasAgg(figure)
    made = Sheet(figure, whole, tall, top)
    made.words("\n".join(heads), MARGIN, MARGIN - 4 - top, fontsize=_HEAD)
    made.words("\n".join(captions), MARGIN, MARGIN - 4 - top + title_height, color=QUIET, linespacing=_LINE)
    return made


def tile_images(tiles: NDArray[np.uint8], gap: int) -> NDArray[np.uint8]:
    """Images (down, across, height, width, 3) as one, with white between them."""
    down, across, height, width, _ = tiles.shape
    whole = np.full((down, height + gap, across, width + gap, 3), 255, np.uint8)
    whole[:, :height, :, :width] = tiles.transpose(0, 2, 1, 3, 4)
    flat = whole.reshape(down * (height + gap), across * (width + gap), 3)
    return flat[: flat.shape[0] - gap, : flat.shape[1] - gap]


def short(name: str, most: int) -> str:
    """A name from anywhere on one line, its middle left out where it is long: its end tells it from others too."""
    whole = printable(name) or "(no name)"
    if sum(map(_width, whole)) <= most:
        return whole
    start, end = _as_many(whole, most - 1 - (most - 1) // 3), _as_many(whole[::-1], (most - 1) // 3)[::-1]
    return f"{start}…{end}"


def letters_in(pixels: float, points: float = _CAPTION) -> int:
    """About how many letters of a name find room in so many pixels."""
    return max(4, int(pixels / (points * _POINT * 0.62)))


def _width(letter: str) -> int:
    """Chinese, Japanese and Korean letters are twice as wide as others."""
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _as_many(text: str, room: int) -> str:
    widths = itertools.accumulate(map(_width, text))
    return text[: sum(width <= room for width in widths)]


@functools.cache
def _families() -> list[str]:
    """matplotlib's own font, which is everywhere the same, and for what it has not, such as Chinese, what is installed."""
    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in _WIDE_FONTS if name in installed), "sans-serif"]
