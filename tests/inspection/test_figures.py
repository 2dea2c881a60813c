"""Every figure, at every size of model: what is drawn is what was given, all words have room, and files are the same twice."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.inspection.embedding_filters import as_images
from vitreous.inspection.figure_style import look
from vitreous.inspection.figures import (
    DPI,
    plot_attention,
    plot_attention_distance,
    plot_attention_entropy,
    plot_data_map,
    plot_filters,
    plot_patch_components,
    plot_patch_similarity,
    plot_position_similarity,
    plot_rollout,
    plot_token_norms,
    plot_token_similarity,
    save,
)
from vitreous.inspection.overlay import heat, overlay
from vitreous.inspection.patches import component_colours

RNG = np.random.default_rng(0)
START = RNG.bit_generator.state
ODD = ("$x_1$ and $y", "a\nb", "long " * 30, "日本語", "<b>&", "\udce9", "", "_background_")


@pytest.fixture(autouse=True)
def _begin_again() -> None:
    """The same numbers in every test, whichever run before it."""
    RNG.bit_generator.state = START


def distances(layers: int, heads: int) -> NDArray[np.float64]:
    return RNG.uniform(5, 120, (layers, heads))


def photograph(height: int = 96, width: int = 96) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def norms(depth: int) -> NDArray[np.float64]:
    return np.sort(RNG.uniform(1, 9, (depth + 1, 5)), axis=1)


def rolled(count: int, names: bool = True, gradient: bool = True, size: tuple[int, int] = (96, 96)) -> Figure:
    maps = RNG.random((2, count, 4, 5))
    said = [ODD[number % len(ODD)] for number in range(count)] if names else None
    return plot_rollout([photograph(*size)] * count, maps[0], maps[1] if gradient else None, said)


def compared(count: int, places: int = 3, size: tuple[int, int] = (96, 96)) -> Figure:
    said = [ODD[number % len(ODD)] for number in range(count)]
    where = [[(0, 0), (3, 4), (2, 2)][:places]] * count
    return plot_patch_similarity([photograph(*size)] * count, RNG.uniform(-1, 1, (count, places, 4, 5)), where, said)


def similarities(rows: int, columns: int) -> NDArray[np.float64]:
    """1 at its own place and less with distance."""
    y, x = np.indices((rows, columns)).astype(float)
    return np.exp(-((y[:, :, None, None] - y) ** 2 + (x[:, :, None, None] - x) ** 2) / 4)


def mapped(count: int, classes: int, method: str = "tsne", names: tuple[str, ...] | None = None, least: int = 0) -> Figure:
    names = names or tuple(f"class {number}" for number in range(classes))
    return plot_data_map(RNG.normal(size=(count, 2)), RNG.integers(least, classes, count), names, method)


FIGURES: dict[str, Callable[[], Figure]] = {
    **{
        f"distance {layers}x{heads}": lambda layers=layers, heads=heads: plot_attention_distance(distances(layers, heads))
        for layers, heads in ((1, 1), (1, 12), (12, 1), (48, 25))
    },
    "distance, all of it": lambda: plot_attention_distance(distances(12, 6), distances(12, 6) / 20, (224, 384), 104.0),
    "distance of one image": lambda: plot_attention_distance(distances(12, 6), np.full((12, 6), np.nan), 224),
    "distance, none": lambda: plot_attention_distance(np.zeros((3, 4))),
    "entropy": lambda: plot_attention_entropy(RNG.uniform(0, 7.6, (24, 16)), 197),
    "entropy of one token": lambda: plot_attention_entropy(np.zeros((2, 2)), 1),
    **{
        f"filters {shape}": lambda shape=shape: plot_filters(RNG.normal(size=shape))
        for shape in ((28, 16, 16, 3), (1, 4, 4, 1), (64, 7, 7, 3), (3, 2, 6, 5), (28, 1, 1, 3))
    },
    "filters, flat": lambda: plot_filters(np.ones((2, 4, 4, 3)), components=False),
    **{
        f"positions {grid}": lambda grid=grid: plot_position_similarity(similarities(*grid))
        for grid in ((1, 1), (7, 7), (14, 14), (37, 37), (20, 6), (1, 30), (3, 64))
    },
    "positions, all alike": lambda: plot_position_similarity(np.ones((4, 4, 4, 4))),
    **{f"rollout of {count}": lambda count=count: rolled(count) for count in (1, 4, 16)},
    "rollout without names": lambda: rolled(3, names=False, gradient=False),
    "rollout of digits": lambda: rolled(5, size=(8, 8)),
    "rollout of wide images": lambda: rolled(2, size=(40, 160)),
    "rollout of tall images": lambda: rolled(2, size=(300, 50)),
    **{
        f"components of {count}": lambda count=count: plot_patch_components(
            [photograph()] * count, RNG.normal(size=(count, 4, 5, 3)), ODD * 2 if count > 4 else None
        )
        for count in (1, 4, 16)
    },
    "components, all alike": lambda: plot_patch_components([photograph(8, 8)], np.zeros((1, 2, 2, 3))),
    **{f"patch similarity of {count}": lambda count=count: compared(count) for count in (1, 3, 12)},
    "patch similarity of one patch": lambda: plot_patch_similarity([photograph()], np.ones((1, 1, 1, 1)), [[(0, 0)]]),
    "patch similarity of wide images": lambda: compared(2, 2, (40, 160)),
    **{
        f"attention {shape}": lambda shape=shape: plot_attention(photograph(), RNG.random(shape))
        for shape in (
            (1, 1, 4, 4),
            (12, 3, 14, 14),
            (24, 16, 37, 37),
            (48, 8, 16, 16),
            (2, 30, 3, 8),
            (4, 2, 4, 4),
            (64, 4, 2, 2),
        )
    },
    "attention to nothing": lambda: plot_attention(photograph(8, 8), np.zeros((2, 2, 4, 4))),
    "attention of a wide image": lambda: plot_attention(photograph(64, 256), RNG.random((12, 6, 4, 16))),
    "norms": lambda: plot_token_norms(norms(12), RNG.uniform(1, 9, (13, 1))),
    "norms without leading tokens": lambda: plot_token_norms(norms(1), np.zeros((2, 0))),
    "norms with registers": lambda: plot_token_norms(norms(40) * 100.0 ** np.arange(5), RNG.uniform(1, 9, (41, 5))),
    "norms, zero": lambda: plot_token_norms(np.zeros((3, 5)), np.zeros((3, 1))),
    "similarity": lambda: plot_token_similarity(RNG.uniform(0, 1, 25), RNG.uniform(0, 1, 24)),
    "similarity of one layer": lambda: plot_token_similarity([0.1, 0.2], [-0.5]),
    "similarity of one patch": lambda: plot_token_similarity([np.nan] * 3, [0.5, 0.9]),
    **{f"map of {count}": lambda count=count: mapped(count, 2) for count in (1, 2, 60)},
    "map by components": lambda: mapped(300, 12, "pca"),
    "map of 1000 classes": lambda: mapped(6000, 1000),
    "map of odd names": lambda: mapped(70, len(ODD), names=ODD),
    "map without labels": lambda: mapped(20, 0, least=-1),
    "map of some labels": lambda: mapped(40, 3, least=-1),
    "map of one point": lambda: plot_data_map(np.zeros((40, 2)), np.zeros(40, int), ["all"], "pca"),
}


def words(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("name", FIGURES)
def test_it_is_drawn_with_room_for_every_word(name: str, recwarn: pytest.WarningsRecorder) -> None:
    figure = FIGURES[name]()
    with look():
        figure.canvas.draw()
    width, height = figure.canvas.get_width_height()  # type: ignore[attr-defined]
    assert 300 <= width <= 1600, "neither a stamp nor a poster"
    assert 120 <= height <= 1700
    everything = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    margins = everything.x0, everything.y0, width - everything.x1, height - everything.y1
    assert min(margins) >= 2, f"something is cut off: {margins}"
    for axes in figure.axes:
        for axis, first, second in ((axes.xaxis, "x1", "x0"), (axes.yaxis, "y1", "y0")):
            low, high = sorted(axis.get_view_interval())
            drawn = [tick.label1 if axis.get_ticks_position() != "top" else tick.label2 for tick in axis.get_major_ticks()
                     if low <= tick.get_loc() <= high]  # fmt: skip
            boxes = sorted(
                (text.get_window_extent() for text in drawn if text.get_text()), key=lambda box: getattr(box, second)
            )
            for before, after in pairwise(boxes):
                assert getattr(before, first) <= getattr(after, second) + 1, "numbers lie on each other"
    assert np.ptp(np.asarray(figure.canvas.buffer_rgba())[..., :3]) > 200  # type: ignore[attr-defined]
    assert not [str(warning.message) for warning in recwarn if issubclass(warning.category, (RuntimeWarning, UserWarning))]


@pytest.mark.parametrize(
    "name",
    ["distance, all of it", "positions (1, 1)", "attention (1, 1, 4, 4)", "norms", "map of odd names", "map of 1000 classes"],
)
def test_equal_arrays_give_equal_files(name: str, tmp_path: Path) -> None:
    files = []
    for attempt in ("one", "two"):
        RNG.bit_generator.state = START
        figure = FIGURES[name]()
        saved = save(figure, tmp_path / attempt, "figure")
        assert saved == (tmp_path / attempt / "figure.png", tmp_path / attempt / "figure.svg")
        files.append([path.read_bytes() for path in saved])
        again = save(figure, tmp_path / attempt, "again")
        assert [path.read_bytes() for path in again] == files[-1]
    assert files[0] == files[1]
    with Image.open(tmp_path / "one" / "figure.png") as picture:
        assert picture.size == tuple(np.floor(figure.get_size_inches() * DPI).astype(int))
    root = ElementTree.fromstring(files[0][1])
    assert root.tag.endswith("svg")
    assert b"<dc:date>" not in files[0][1]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["again.png", "again.svg", "figure.png", "figure.svg"]


def test_words_stay_words_in_svg(tmp_path: Path) -> None:
    _, path = save(mapped(70, len(ODD), names=ODD), tmp_path, "map")
    found = [element.text for element in ElementTree.parse(path).iter() if element.tag.endswith("text")]
    assert "$x_1$ and $y" in found
    assert "<b>&" in found
    assert r"a\nb" in found
    assert "日本語" in found
    assert "_background_" in found
    assert "Map of 70 images by t-SNE" in found


def test_nobodys_settings_matter_or_change(tmp_path: Path) -> None:
    values = distances(12, 6)
    plain = save(plot_attention_distance(values), tmp_path, "plain")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "svg.fonttype": "path", "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        strange = save(plot_attention_distance(values), tmp_path, "strange")
        assert dict(matplotlib.rcParams) == before
    assert [path.read_bytes() for path in plain] == [path.read_bytes() for path in strange]


def test_pyplot_is_not_loaded() -> None:
    """It would open windows, and keep every figure for ever."""
    program = """
import sys, numpy
from vitreous.inspection.figures import plot_attention_distance
plot_attention_distance(numpy.ones((2, 3)))
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


NAN = np.nan


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: plot_attention_distance([[1.0, NAN]]), "attention distance: 1 of 2 values are not finite"),
        (lambda: plot_attention_distance([1.0, 2.0]), r"attention distance: shape \(2,\); expected \(layers, heads\)"),
        (lambda: plot_attention_entropy([[NAN]], 5), "attention entropy"),
        (lambda: plot_filters(np.full((1, 2, 2, 3), NAN)), "filters: 12 of 12"),
        (lambda: plot_filters(np.ones((2, 2, 3))), "filters: shape"),
        (lambda: plot_position_similarity(np.full((2, 2, 2, 2), NAN)), "position similarity"),
        (lambda: plot_patch_components([photograph()], np.full((1, 2, 2, 3), NAN)), "patch components: 12 of 12"),
        (lambda: plot_patch_similarity([photograph()], np.full((1, 1, 2, 2), NAN), [[(0, 0)]]), "patch similarity: 4 of 4"),
        (
            lambda: plot_rollout([photograph()], np.ones((1, 2, 2)), np.full((1, 2, 2), NAN)),
            "gradient-weighted rollout: 4 of 4",
        ),
        (lambda: plot_rollout([photograph() / 255], np.ones((1, 2, 2))), "float64"),  # type: ignore[list-item]
        (lambda: plot_attention(photograph(), np.full((1, 1, 2, 2), NAN)), "attention maps"),
        (lambda: plot_attention(photograph(), np.ones((2, 2, 2))), "attention maps: shape"),
        (lambda: plot_token_norms(np.full((3, 5), NAN)), "quantiles of token norms"),
        (lambda: plot_token_similarity([0.1, NAN, 0.2], [0.1, 0.2]), "token similarity: 1 of 3"),
        (lambda: plot_token_similarity([0.1, 0.2], [NAN]), "token change"),
        (lambda: plot_data_map([[NAN, 0.0]], [0], ["a"], "pca"), "points of the data map"),
    ],
)
def test_what_cannot_be_drawn_is_named(draw: Callable[[], Any], said: str) -> None:
    with pytest.raises(VitreousError, match=said) as caught:
        draw()
    assert "\n" not in str(caught.value)


# What is drawn is what was given ---------------------------------------------------------------------------------------


def dots(figure: Figure) -> NDArray[np.float64]:
    parts = [part.get_offsets() for part in figure.axes[0].collections if isinstance(part, PathCollection)]
    return np.concatenate([np.asarray(part) for part in parts])


def test_each_head_is_a_dot_and_heads_are_sorted() -> None:
    values = distances(5, 4)
    figure = plot_attention_distance(values)
    ranks = [np.asarray(part.get_offsets()) for part in figure.axes[0].collections if isinstance(part, PathCollection)]
    assert len(ranks) == 4
    for rank, found in enumerate(ranks):
        np.testing.assert_array_equal(found[:, 0], np.arange(5))
        np.testing.assert_array_equal(found[:, 1], np.sort(values, axis=1)[:, rank])


def test_error_bars_belong_to_their_heads() -> None:
    """Sorted with them: the nearest-looking head has the widest bar here."""
    figure = plot_attention_distance([[30.0, 10.0, 20.0]], [[1.0, 9.0, 4.0]])
    bars = [
        segment for lines in figure.axes[0].collections if hasattr(lines, "get_segments") for segment in lines.get_segments()
    ]
    spans = sorted((float(np.mean(bar[:, 1])), float(np.ptp(bar[:, 1]))) for bar in bars if len(bar) and np.ptp(bar[:, 1]) > 0)
    assert spans == [(10.0, 18.0), (20.0, 8.0), (30.0, 2.0)]


def test_the_second_scale_is_a_share_of_the_image() -> None:
    figure = plot_attention_distance([[50.0, 100.0]], image_size=(224, 200))
    with look():
        figure.canvas.draw()
    second = figure.axes[0].child_axes[0]
    low, high = figure.axes[0].get_ylim()
    np.testing.assert_allclose(second.get_ylim(), (low / 2, high / 2))


def sheets(figure: Figure) -> list[NDArray[np.uint8]]:
    return [np.asarray(image.get_array())[..., :3] for axes in figure.axes for image in axes.images]


def test_pictures_are_not_resampled() -> None:
    """Pixel by pixel, wherever they stand."""
    for name in ("filters (28, 16, 16, 3)", "positions (7, 7)", "rollout of digits", "attention (12, 3, 14, 14)"):
        figure = FIGURES[name]()
        with look():
            figure.canvas.draw()
        page = np.asarray(figure.canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined]
        for pixels, axes in zip(sheets(figure), (axes for axes in figure.axes if axes.images), strict=True):
            box = axes.get_window_extent()
            left, top = round(box.x0), len(page) - round(box.y1)
            np.testing.assert_array_equal(page[top : top + pixels.shape[0], left : left + pixels.shape[1]], pixels)


def test_filters_lie_row_by_row() -> None:
    values = RNG.normal(size=(28, 16, 16, 3))
    (whole,) = sheets(plot_filters(values))
    tall, wide = (whole.shape[0] + 8) // 4, (whole.shape[1] + 8) // 7
    pictures = as_images(values.astype(np.float32))
    for number in range(28):
        row, column = divmod(number, 7)
        tile = whole[row * tall + 1 : (row + 1) * tall - 9, column * wide + 1 : (column + 1) * wide - 9]  # a thin line around
        np.testing.assert_array_equal(tile, np.kron(pictures[number], np.ones((6, 6, 1), np.uint8)))


@pytest.mark.parametrize(("components", "title"), [(True, "the first 4 principal components"), (False, "first convolution")])
def test_only_components_have_an_order(components: bool, title: str) -> None:
    words = " ".join(text.get_text() for text in plot_filters(RNG.normal(size=(4, 7, 7, 3)), components).texts)
    assert title in words
    assert ("strongest first" in words) == components


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (14, 14)])
def test_a_tile_is_brightest_at_its_own_place(rows: int, columns: int) -> None:
    whole = sheets(plot_position_similarity(similarities(rows, columns)))[0].astype(int).sum(axis=2)
    tall, wide = (whole.shape[0] + 3) // rows, (whole.shape[1] + 3) // columns
    for row in range(rows):
        for column in range(columns):
            tile = whole[row * tall : row * tall + tall - 3, column * wide : column * wide + wide - 3]
            cells = tile.reshape(rows, tile.shape[0] // rows, columns, tile.shape[1] // columns)
            assert np.ptp(cells, axis=(1, 3)).max() == 0  # every place a block of one colour
            assert np.unravel_index(int(cells[:, 0, :, 0].argmax()), (rows, columns)) == (row, column)


def test_large_grids_are_thinned_out_and_say_so() -> None:
    figure = plot_position_similarity(similarities(37, 24))
    assert any("16 × 16 of 37 × 24 places" in text.get_text() for text in words(figure))
    ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert (ticks[0], ticks[-1], len(ticks)) == ("1", "37", 16)
    assert not any(" of 14 × 14" in text.get_text() for text in words(plot_position_similarity(similarities(14, 14))))


def test_rollouts_stand_beside_their_pictures() -> None:
    pictures, maps = [photograph(100, 100), photograph(100, 100)], RNG.random((2, 2, 4, 4))
    found = sheets(plot_rollout(pictures, maps[0], maps[1]))
    assert len(found) == 6
    for index in range(2):
        seen, attention, gradient = found[3 * index : 3 * index + 3]
        enlarged = Image.fromarray(pictures[index]).resize((300, 300), Image.Resampling.LANCZOS)
        np.testing.assert_array_equal(seen, np.asarray(enlarged))
        np.testing.assert_array_equal(attention, overlay(seen, maps[0, index]))
        np.testing.assert_array_equal(gradient, overlay(seen, maps[1, index]))


def test_patches_are_blocks_of_colour_and_the_chosen_one_is_framed() -> None:
    components, maps = RNG.normal(size=(1, 4, 5, 3)), RNG.uniform(0, 0.5, (1, 2, 4, 5))
    places = [(1, 2), (3, 0)]
    maps[0, 0, 1, 2] = maps[0, 1, 3, 0] = 1
    _, coloured = sheets(plot_patch_components([photograph(100, 100)], components))
    tall, wide = 300 // 4, 300 // 5
    np.testing.assert_array_equal(coloured[tall // 2 :: tall, wide // 2 :: wide], component_colours(components)[0])
    _, *found = sheets(plot_patch_similarity([photograph(100, 100)], maps, [places]))
    for similarity, (row, column) in zip(found, places, strict=True):
        inner = similarity[tall // 2 :: tall, wide // 2 :: wide]
        expected = matplotlib.colormaps["viridis"](1.0, bytes=True)[:3]
        assert tuple(inner[row, column]) == tuple(expected)
        assert (similarity[row * tall + tall // 2, (column + 1) * wide] == 255).all()  # its frame


def test_columns_are_layers_and_rows_are_heads() -> None:
    maps = RNG.random((3, 2, 4, 4))
    whole = sheets(plot_attention(photograph(), maps))[1]
    tall, wide = (whole.shape[0] + 4) // 2, (whole.shape[1] + 4) // 3
    for layer in range(3):
        for head in range(2):
            tile = whole[head * tall : (head + 1) * tall - 4, layer * wide : (layer + 1) * wide - 4]
            side = tile.shape[0] // 4
            np.testing.assert_array_equal(tile[side // 2 :: side, side // 2 :: side], heat(maps[layer, head]))


def test_points_and_names_of_the_map() -> None:
    points, labels = RNG.normal(size=(50, 2)), np.arange(50) % 3
    figure = plot_data_map(points, labels, ["ant", "bee", "cat"], "pca")
    found = dots(figure)
    np.testing.assert_array_equal(found[np.lexsort(found.T)], points[np.lexsort(points.T)])
    legend = figure.axes[0].get_legend()
    assert legend is not None
    named = {
        text.get_text(): line.get_markerfacecolor() for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    assert list(named) == ["ant", "bee", "cat"]
    (part,) = [part for part in figure.axes[0].collections if isinstance(part, PathCollection)]
    for place, colour in zip(np.asarray(part.get_offsets()), part.get_facecolors(), strict=True):  # type: ignore[attr-defined]
        label = int(labels[np.flatnonzero((points == place).all(axis=1))[0]])
        expected = matplotlib.colors.to_rgb(named[("ant", "bee", "cat")[label]])
        np.testing.assert_allclose(colour[:3], expected, atol=1e-6)


def test_of_many_classes_the_most_frequent_are_named() -> None:
    labels = np.concatenate([np.repeat(np.arange(980, 990), 30), np.arange(1000)])
    figure = plot_data_map(RNG.normal(size=(len(labels), 2)), labels, [f"class {k}" for k in range(1000)], "tsne")
    legend = figure.axes[0].get_legend()
    assert legend is not None
    named = [text.get_text() for text in legend.get_texts()]
    assert named == [*(f"class {k}" for k in range(980, 990)), "class 0", "class 1", "and 988 more classes"]


def test_long_names_are_shortened_in_the_middle() -> None:
    figure = mapped(9, 1, names=("photographs/of/animals/in/the/wild/number-one-hundred.jpg",))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    (name,) = [text.get_text() for text in legend.get_texts()]
    assert len(name) == 24
    assert name.startswith("photographs/")
    assert name.endswith("red.jpg")
