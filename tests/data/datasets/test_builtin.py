"""Built-in data: the rendered images are what their labels say, everywhere and always the same; the digits are real."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy import ndimage, stats

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.builtin import BUILTIN, open_builtin
from vitreous.data.source import SPLITS, Source
from vitreous.data.synthetic.paint import paint
from vitreous.data.synthetic.random_draws import derive_keys
from vitreous.data.synthetic.rendered import TASKS, Rendered
from vitreous.data.synthetic.scenes import POINTERS, SCENES, Scene, Surface, Thing, compose_scene
from vitreous.data.synthetic.symbols import BAR, SHAPES, SYMBOLS, centre_lines
from vitreous.data.synthetic.textures import FAMILIES, Texture

WHITE, BLACK = (Surface(c, c, Texture("flat")) for c in ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)))
SIZE = 192


def opened(name: str, split: str = "train") -> Rendered:
    source = open_builtin(name).source(split)
    assert isinstance(source, Rendered)
    return source


def digest(source: Source, *indices: int) -> str:
    return hashlib.sha256(b"".join(np.asarray(source.read(i)).tobytes() for i in indices)).hexdigest()


def scene_of(source: Rendered, index: int) -> Scene:
    """The description from which `read` paints, checked to be that."""
    scene = compose_scene(TASKS[source.task].scene, int(source._keys(index, 1)[0]))
    assert np.array_equal(paint(scene, source.size), source.read(index))
    return scene


def mask(*things: Thing, size: int = SIZE) -> np.ndarray:
    """The things alone, without colours, light and noise."""
    bare = tuple(replace(thing, surface=BLACK, rim=None) for thing in things)
    return paint(Scene(WHITE, bare), size)[:, :, 0] < 128


def drawn(symbol: int, degrees: float, x: float, y: float, radius: float, width: float) -> np.ndarray:
    """The same by Pillow: its polygons and lines, and angles from the standard library."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    canvas = Image.new("L", (SIZE, SIZE))
    pen = ImageDraw.Draw(canvas)
    for line in centre_lines(SYMBOLS[symbol]):
        points = [((x + radius * (c * u - s * v)) * SIZE, (y + radius * (s * u + c * v)) * SIZE) for u, v in line]
        if SYMBOLS[symbol].closed:
            pen.polygon(points, fill=1)
            continue
        half = width * radius * SIZE
        for a, b in pairwise(points):
            pen.line([a, b], fill=1, width=round(2 * half))
        for u, v in points:
            pen.ellipse((u - half, v - half, u + half, v + half), fill=1)
    return np.asarray(canvas) > 0


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    return float((a & b).sum() / (a | b).sum())


# The same everywhere --------------------------------------------------------------------------------------------------------

PINNED = {
    "shapes": "c9d11bac852ad811",
    "signs": "66a14a9da2914dda",
    "objects": "fa7cee4596b35116",
    "count": "fa7cee4596b35116",
    "position": "2ca71e135f895c11",
    "orientation": "2ca71e135f895c11",
}


@pytest.mark.parametrize("task", TASKS)
def test_images_are_pinned(task: str) -> None:
    """If this fails, images have changed for everybody who trained on them: raise EDITION, or undo the change."""
    source = opened(f"{task}?seed=7&count=9223372036854775807")
    assert digest(source, *range(20), 2**62, 2**63 - 2)[:16] == PINNED[task]


def test_images_do_not_depend_on_process_order_or_processor() -> None:
    """Another process reads them backwards, without the vector instructions that numpy uses here."""
    code = (
        "import sys, hashlib; from vitreous.data.datasets.builtin import open_builtin\n"
        "for task in sys.argv[1:]:\n"
        "    source = open_builtin(task).source('test')\n"
        "    read = {i: source.read(i).tobytes() for i in reversed(range(30))}\n"
        "    print(hashlib.sha256(b''.join(read[i] for i in range(30))).hexdigest(), source.labels(29))"
    )
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[index, call-arg]
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(found), "PYTHONHASHSEED": "77"}
    answer = subprocess.run([sys.executable, "-c", code, *TASKS], env=environment, capture_output=True, text=True, check=True)
    expected = [f"{digest(s, *range(30))} {s.labels(29)}" for s in (opened(task, "test") for task in TASKS)]
    assert answer.stdout.splitlines() == expected


@pytest.mark.parametrize("task", TASKS)
def test_seed_and_index_matter_and_size_does_not_change_the_scene(task: str) -> None:
    source, other, large = opened(task), opened(f"{task}?seed=1"), opened(f"{task}?size=128")
    assert len({digest(s, i) for s in (source, other) for i in range(20)}) == 40
    assert [source.labels(i) for i in range(50)] != [other.labels(i) for i in range(50)]
    for index in range(5):
        assert source.labels(index) == large.labels(index)
        halved = np.asarray(Image.fromarray(large.read(index)).reduce(2), np.float64)
        assert np.corrcoef(halved.ravel(), source.read(index).ravel())[0, 1] > 0.8


def test_tasks_of_one_scene_share_their_images() -> None:
    for one, other in (("position", "orientation"), ("count", "objects")):
        assert digest(opened(one), *range(10)) == digest(opened(other), *range(10))


# The labels are true --------------------------------------------------------------------------------------------------------


def test_each_symbol_is_drawn_as_pillow_draws_it() -> None:
    for symbol, degrees in zip(range(len(SYMBOLS)), np.arange(0, 360, 12).tolist(), strict=True):
        thing = Thing(symbol, 0.45, 0.55, 0.4, degrees / 360, BLACK)
        assert overlap(mask(thing), drawn(symbol, degrees, 0.45, 0.55, 0.4, thing.width)) > 0.9, SYMBOLS[symbol].name


def forms(symbols: Iterable[int], angles: int) -> np.ndarray:
    """(symbol, angle, pixel)"""
    turned = [[Thing(i, 0.5, 0.5, 0.45, turn / angles, BLACK) for turn in range(angles)] for i in symbols]
    return np.array([[mask(thing, size=64).ravel() for thing in things] for things in turned], np.float32)


def test_no_symbol_is_another_one_turned_or_mirrored() -> None:
    turned = forms(range(len(SYMBOLS)), 32)
    mirrored = turned[:, 0].reshape(-1, 64, 64)[:, :, ::-1].reshape(len(SYMBOLS), -1)
    for upright in (turned[:, 0], mirrored):
        both = turned @ upright.T  # (symbol, angle, symbol)
        either = turned.sum(-1)[..., None] + upright.sum(-1) - both
        best = (both / either).max(axis=1)
        np.fill_diagonal(best, 0)
        assert best.max() < 0.85, [SYMBOLS[i].name for i in np.unravel_index(best.argmax(), best.shape)]


def test_symbols_with_an_orientation_look_the_same_at_one_angle_only() -> None:
    for symbol, turned in zip(POINTERS, forms(POINTERS, 16), strict=True):
        both = turned @ turned[0]
        shares = both / (turned.sum(-1) + turned[0].sum() - both)
        assert shares[0] == 1
        assert shares[1:].max() < 0.85, SYMBOLS[symbol].name


def test_shapes_are_distinguished_by_their_form() -> None:
    source = opened("shapes")
    for index in range(30):
        main = max((t for t in scene_of(source, index).things if t.symbol != BAR), key=lambda t: t.radius)
        seen = mask(replace(main, x=0.5, y=0.5, radius=0.4, style="fill", narrow=(1.0, 1.0)))
        candidates = [drawn(i, 360 * main.turn, 0.5, 0.5, 0.4, main.width) for i in range(len(SYMBOLS))]
        assert source.labels(index) == (int(np.argmax([overlap(seen, form) for form in candidates])),)


def test_signs_name_the_shape_and_the_glyph() -> None:
    source = opened("signs")
    for index in range(30):
        plate, glyph = (t for t in scene_of(source, index).things if t.symbol != BAR)
        assert plate.symbol < len(SHAPES) <= glyph.symbol
        expected = f"{SYMBOLS[plate.symbol].name}+{SYMBOLS[glyph.symbol].name}"
        assert source.classes[source.labels(index)[0]] == expected


def test_counts_are_what_connected_components_say() -> None:
    counting, naming = opened("count"), opened("objects")
    whole = 0
    for index in range(60):
        things = [t for t in scene_of(counting, index).things if t.symbol != BAR]
        assert naming.labels(index) == tuple(sorted({t.symbol for t in things}))
        if all(SYMBOLS[t.symbol].name != "question-mark" for t in things):  # whose dot is a part of its own
            whole += 1
            components, _ = ndimage.label(mask(*things), np.ones((3, 3)))
            large = np.bincount(components.ravel())[1:] > 9  # the horn of a crescent may come off: a ninth of a pixel at 64
            assert counting.classes[counting.labels(index)[0]] == str(large.sum())
    assert whole > 30


def test_positions_are_where_the_centre_of_mass_is() -> None:
    source = opened("position")
    right = 0
    for index in range(100):
        (thing,) = (t for t in scene_of(source, index).things if t.symbol != BAR)
        y, x = ((centre + 0.5) / SIZE for centre in ndimage.center_of_mass(mask(thing)))
        row, column = (min(3, max(0, int((place - 0.2) / 0.15))) for place in (y, x))
        right += source.classes[source.labels(index)[0]] == f"row-{row + 1}-column-{column + 1}"
    assert right >= 98  # a symbol that reaches over the edge has its centre elsewhere


def test_orientations_are_what_pillow_finds_by_turning() -> None:
    source = opened("orientation")
    for index in range(40):
        (thing,) = (t for t in scene_of(source, index).things if t.symbol != BAR)
        seen = mask(replace(thing, x=0.5, y=0.5, radius=0.4, style="fill"))
        tip = {"arrow": 0, "drop": 0, "heart": 180}[SYMBOLS[thing.symbol].name]
        candidates = [drawn(thing.symbol, 22.5 * step - tip, 0.5, 0.5, 0.4, thing.width) for step in range(16)]
        best = int(np.argmax([overlap(seen, form) for form in candidates]))
        assert source.classes[source.labels(index)[0]] == f"{22.5 * best:g}-degrees"


@pytest.mark.parametrize("task", TASKS)
def test_classes_are_balanced_and_counted(task: str) -> None:
    source = opened(f"{task}?count=70000")  # more than one block
    counts, targets = source.counts(), source.targets()
    assert len(targets) == 70_000
    assert len(counts) == len(source.classes)
    assert stats.chisquare(counts).pvalue > 1e-4
    for index in (0, 1, 65_535, 65_536, 69_999):
        assert targets[index] == source.labels(index)[0]
    if task != "objects":
        assert np.array_equal(counts, np.bincount(targets))
    small = opened(f"{task}?count=500")
    assert np.array_equal(small.counts(), Source.counts(small))
    assert np.array_equal(small.targets(), Source.targets(small))


@pytest.mark.parametrize("task", TASKS)
def test_labels_say_nothing_about_the_looks(task: str) -> None:
    """Of the ground and of the nearest thing: texture, brightness, style."""
    source = opened(f"{task}?count=1500")
    labels = source.targets() % 6
    looks: list[tuple[int, ...]] = []
    for key in source._keys(0, 1500).tolist():
        scene = compose_scene(TASKS[task].scene, key)
        last = [t for t in scene.things if t.symbol != BAR][-1]
        bright = (scene.ground.first[1] > 0.5, last.surface.first[1] > 0.5)
        looks.append((list(FAMILIES).index(scene.ground.look.family), *bright, scene.light[1] > 0.1, scene.noise > 0.035))
    for look in np.array(looks, int).T:
        table = np.histogram2d(labels, look, (6, look.max() + 1))[0]
        assert stats.chi2_contingency(table).pvalue > 1e-4


# Splits ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_splits_have_nothing_in_common(task: str) -> None:
    data = open_builtin(task)
    sources = [opened(task, split) for split in SPLITS]
    assert list(data.splits) == list(SPLITS)
    assert len({digest(source, i) for source in sources for i in range(40)}) == 120
    assert len({source.id(i) for source in sources for i in range(40)}) == 120
    drawn_keys = np.concatenate([source._keys(0, len(source)) for source in sources])
    assert len(np.unique(drawn_keys)) == sum(map(len, sources))


def test_scenes_and_seeds_draw_different_keys() -> None:
    images = np.arange(20_000, dtype=np.uint64)
    drawn_keys = [derive_keys(seed, scene, images) for seed in (0, 1, 2**63 - 1) for scene in range(len(SCENES))]
    assert len(np.unique(np.concatenate(drawn_keys))) == 12 * 20_000


# As a source ----------------------------------------------------------------------------------------------------------------


def test_it_is_listed_as_it_is() -> None:
    assert {entry.name for entry in BUILTIN if entry.kind == "real"} == {"digits"}
    for entry in BUILTIN:
        data = open_builtin(entry.name)
        assert (len(data.classes), {s: len(source) for s, source in data.splits.items()}) == (entry.classes, entry.images)  # type: ignore[arg-type]
        assert len(set(data.classes)) == entry.classes
        assert all(source.classes == data.classes and source.where == data.where for source in data.splits.values())


def test_a_source_is_small_and_ends() -> None:
    source = opened("shapes?count=3&size=32")
    copy = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 5_000
    assert digest(copy, 0, 1, 2) == digest(source, 0, 1, 2)
    items = [item for item in source]  # type: ignore[attr-defined]  # noqa: C416
    assert [item.id for item in items] == ["train/000000", "train/000001", "train/000002"]
    assert all(item.content.shape == (32, 32, 3) and item.content.dtype == np.uint8 for item in items)
    for index in (-1, 3):
        with pytest.raises(IndexError):
            source.read(index)


def test_no_end_of_images() -> None:
    source = opened("objects?count=9223372036854775807")
    assert source[2**63 - 2].id == "train/9223372036854775806"
    assert source.fingerprint() != opened("objects").fingerprint()
    with pytest.raises(VitreousError, match="count="):
        source.targets()
    with pytest.raises(VitreousError, match="count="):
        source.counts()


def test_a_fingerprint_tells_sets_apart() -> None:
    sources = [opened(f"count{options}", split) for options in ("", "?seed=1", "?count=9", "?size=32") for split in SPLITS]
    same = opened("count?seed=0&count=1000&size=64")
    prints = [source.fingerprint() for source in sources]
    assert same.fingerprint() == prints[0]
    assert len(set(prints)) == 10  # count= leaves the two other splits as they are


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shape", "did you mean 'shapes'"),
        ("", "unknown built-in data set"),
        ("Digits", "did you mean 'digits'"),
        ("shapes?sise=64", "did you mean 'size'"),
        ("shapes?size", "'size' is not an option"),
        ("shapes?", "is not an option"),
        ("shapes?size=64&", "is not an option"),
        ("shapes?size=", "whole number from 16 to 2048"),
        ("shapes?size=15", "whole number from 16 to 2048"),
        ("shapes?size=64.0", "whole number"),
        ("shapes?size=+64", "whole number"),
        ("shapes?size=٦٤", "whole number"),
        ("shapes?count=0", "whole number from 1"),
        ("shapes?count=1e5", "whole number"),
        ("shapes?count=9223372036854775808", "whole number"),
        ("shapes?seed=-1", "whole number from 0"),
        ("shapes?seed=" + "9" * 5000, "whole number from 0"),
        ("shapes?seed=1&seed=1", "twice"),
        ("digits?seed=1", "no options"),
    ],
)
def test_what_is_misspelt_is_refused_in_one_line(name: str, said: str) -> None:
    with pytest.raises(VitreousError, match=said) as caught:
        open_builtin(name)
    assert "\n" not in str(caught.value)


# Digits ---------------------------------------------------------------------------------------------------------------------


def test_digits_are_those_of_scikit_learn_each_in_one_split() -> None:
    from sklearn.datasets import load_digits

    original, data = load_digits(), open_builtin("digits")
    seen: list[int] = []
    for split, share in (("train", 1097 / 1797), ("validation", 200 / 1797), ("test", 500 / 1797)):
        source = data.source(split)
        assert isinstance(source, Source)
        for item in source.items():
            number = int(item.id)
            seen.append(number)
            assert item.labels == (original.target[number],)
            assert np.abs(np.asarray(item.content, float) * (16 / 255) - original.images[number]).max() < 16 / 255 / 2 + 1e-9
        assert np.abs(source.counts() - share * np.bincount(original.target)).max() <= 1
    assert sorted(seen) == list(range(1797))


def test_the_split_of_the_digits_is_pinned() -> None:
    source = open_builtin("digits").source("test")
    assert isinstance(source, Source)
    assert hashlib.sha256(" ".join(source.id(i) for i in range(len(source))).encode()).hexdigest()[:16] == "ae5ea6cd9d21310d"


def test_without_scikit_learn_the_line_to_type_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(VitreousError, match=r"pip install 'vitreous\[demo\]'"):
        open_builtin("digits")
