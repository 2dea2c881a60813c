"""The page of an inspection: what its sentences say is so, names stay names, and nothing runs but its own script."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.neighbors import NearestNeighbors

from html_page import Page
from vitreous.classifier import Classifier
from vitreous.inference.features import Features
from vitreous.inspection import captions as sentences
from vitreous.inspection.captions import READINGS
from vitreous.inspection.data_map import DataMap, project_features
from vitreous.inspection.distance import compute_distance, uniform_distance
from vitreous.inspection.file_names import safe_stem, unique_stems
from vitreous.inspection.inspect_model import InputImage, Inspection, inspect_model
from vitreous.inspection.inspection_dir import collect_numbers, write_inspection_dir
from vitreous.inspection.inspection_report import tile_maps
from vitreous.inspection.report_map import ACROSS, HEIGHT, WIDTH, class_colours, make_sprite, place_points

from conftest import random_checkpoint

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "a'b\n\x1b[31m\u202e</svg>")


def random(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random(shape)


def map_of(n: int, classes: tuple[str, ...], ids: tuple[str, ...]) -> DataMap:
    labels = tuple((label,) if label >= 0 else () for label in (np.arange(n) % (len(classes) + 1) - 1).tolist())
    pictures, values = (255 * random(n, 40, 40, 3)).astype(np.uint8), random(n, 6).astype(np.float32)
    features = Features(values, labels, ids, np.arange(n), classes)
    return DataMap("photos (test)", features, pictures, *project_features(values))


@pytest.fixture(scope="module")
def found() -> Inspection:
    options: dict[str, Any] = dict(image_size=16, width=16, depth=2, heads=2, mlp=16, classes=3, names=HOSTILE)
    clf = Classifier(random_checkpoint("ViT-Ti/4", **options))
    images = [
        InputImage(f"{HOSTILE[k]}.png", clf.preprocess((255 * random(20, 20, 3, seed=k)).astype(np.uint8))) for k in range(3)
    ]
    data_map = map_of(60, HOSTILE, tuple(f"{HOSTILE[0]}{k}" for k in range(60)))
    return replace(inspect_model(clf, images, closely=2), data_map=data_map)


@pytest.fixture(scope="module")
def folder(found: Inspection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    about = {"checkpoint": HOSTILE[1], "images_of": HOSTILE[0], "notes": [HOSTILE[0], "a note"]}
    out = tmp_path_factory.mktemp("report") / "out"
    assert write_inspection_dir(out, found, about, began=0.0)["layers"] == 2
    return out


def read(folder: Path) -> tuple[str, Page]:
    text = (folder / "report.html").read_text(encoding="utf-8")
    return text, Page(text)


def test_nothing_runs_but_its_own_script(folder: Path) -> None:
    text, page = read(folder)
    (policy,) = [meta["content"] or "" for meta in page.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    seal = base64.b64encode(hashlib.sha256(page.scripts.encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{seal}'"
    assert len(page.of("script")) == 1
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href"):
            value = attributes.get(name)
            if value is not None and tag != "a":
                assert value.startswith("data:image/"), value[:80]
    for name in HOSTILE:
        assert name not in text
    assert "alert(1)" in page.said  # as words
    assert "\x1b" not in text


def test_every_link_leads_to_a_file(folder: Path) -> None:
    text, page = read(folder)
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    links = [link["href"] or "" for link in page.of("a")]
    assert len(links) > 20
    for link in links:
        assert link[1:] in ids if link.startswith("#") else (folder / link).is_file(), link
    assert len(text) < 3_000_000


def test_every_figure_says_how_to_read_it_and_what_is_healthy(folder: Path) -> None:
    _, page = read(folder)
    sections = [section["id"] or "" for section in page.of("section")]
    assert sections == [name for name in READINGS if name not in ("class_activation", "first_convolution")] + ["settings"]
    for name in sections[:-1]:
        reading = READINGS[name]
        assert reading.how in page.said
        assert reading.healthy in page.said
    assert page.said.count("This model") == 10
    assert all(image.get("alt") is not None for image in page.of("img"))
    headings = [tag for tag, _ in page.elements if tag in ("h1", "h2", "h3")]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1


def test_numbers_for_json_are_plain(found: Inspection) -> None:
    told = collect_numbers(found)
    assert told["survey"]["images"] == 3
    assert [look["classes"][0] in HOSTILE for look in told["looks"]] == [True, True]
    assert sum(told["looks"][0]["probabilities"]) == pytest.approx(1)
    assert told["data_map"]["images"] == 60


# What this model shows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grid", "step", "prefix"), [((3, 4), (8, 8), 1), ((2, 2), (16, 4), 0), ((1, 1), (32, 32), 5)])
def test_uniform_distance_is_what_uniform_attention_has(grid: tuple[int, int], step: tuple[int, int], prefix: int) -> None:
    import torch

    tokens = prefix + grid[0] * grid[1]
    uniform = torch.full((1, 1, tokens, tokens), 1 / tokens)
    assert uniform_distance(grid, step, prefix) == pytest.approx(float(compute_distance(uniform, grid, step, prefix)))


def test_what_is_said_of_distances() -> None:
    said = sentences.distance(np.array([[10.0, 49.0, 95.0, 100.0], [90.0, 91.0, 92.0, 93.0]]), uniform=100.0)
    assert said.startswith("In layer 0 the heads look 10 to 100 pixels far; uniform attention would be 100.")
    assert "Of 4 heads, 2 look around their own patch and 2 across the whole image" in said
    assert said.endswith("In the last layer they look 90 to 93 pixels far.")
    assert "last layer" not in sentences.distance(np.array([[10.0]]), uniform=100.0)


def test_what_is_said_of_entropy() -> None:
    said = sentences.entropy(np.array([[4.0, 0.25], [3.9, 2.0]]), tokens=16)
    assert "From 0.25 bits (layer 0, head 1) to 4.00 (layer 0, head 0); uniform attention is 4.00" in said
    assert "Of 4 heads, 2 look nearly uniformly and 1 at nearly one token" in said


def test_what_is_said_of_tokens() -> None:
    quantiles = np.array([[1.0, 2, 4, 5, 6], [2.0, 4, 8, 10, 80]])
    said = sentences.norms(quantiles, np.array([[3.0], [16.0]]), 0.021)
    assert "from 4 to 8, 2 times" in said
    assert "2.1 % of patches are outliers. After the last layer the longest patch has 10 times the median" in said
    assert "the first leading token 2 times" in said
    said = sentences.norms(np.zeros((2, 5)), np.zeros((2, 0)), 0.0)
    assert "No patch is an outlier" in said
    assert "leading" not in said
    said = sentences.similarity(np.array([0.1, 0.5, 0.62]), np.array([0.4, 0.9]))
    assert (
        "0.10 after the embedding and 0.62 after the last layer. Layer 0 changes patches most: they keep a similarity of 0.40"
        in said
    )
    assert sentences.similarity(np.array([np.nan, np.nan]), np.array([0.4])) == ""  # one patch has no other to be like


def test_what_is_said_of_positions() -> None:
    values = random(3, 4, 3, 4)
    groups: dict[str, list[float]] = {"next": [], "line": [], "rest": []}
    for (a, b), (c, d) in itertools.product(np.ndindex(3, 4), np.ndindex(3, 4)):
        down, across = abs(a - c), abs(b - d)
        if down + across == 1:
            groups["next"].append(values[a, b, c, d])
        elif down + across and not (down and across):
            groups["line"].append(values[a, b, c, d])
        elif down and across:
            groups["rest"].append(values[a, b, c, d])
    near, line, rest = (f"{np.mean(group):.2f}" for group in groups.values())
    said = sentences.positions(values)
    assert said == (
        f"Mean cosine similarity: direct neighbours {near}, other places of the same row or column {line}, all the rest {rest}."
    )
    assert sentences.positions(np.ones((1, 1, 1, 1))) == ""


def test_what_is_said_of_filters() -> None:
    x = np.arange(32) / 32
    waves = np.stack([np.sin(2 * np.pi * x)[:, None] * np.cos(2 * np.pi * x)[None] for _ in range(3)])[..., None]
    correlation = float(sentences.smoothness(waves).split("with ")[1].split(";")[0])
    assert correlation > 0.9
    noise = sentences.smoothness(np.random.default_rng(0).standard_normal((28, 16, 16, 3)))
    assert abs(float(noise.split("with ")[1].split(";")[0])) < 0.05
    assert "flat" in sentences.smoothness(np.ones((2, 8, 8, 3)))
    assert sentences.smoothness(np.ones((2, 2, 2, 3))) == ""


def test_what_is_said_of_rollouts() -> None:
    one_patch, all_alike = np.zeros((4, 5)), np.ones((4, 5))
    one_patch[2, 3] = 1
    assert "from 5 % of them" in sentences.concentration([one_patch])
    assert "from 50 % of them" in sentences.concentration([all_alike])
    assert sentences.concentration([np.zeros((2, 2))]) == ""


def test_what_is_said_of_the_map_is_what_scikit_learn_finds() -> None:
    values, labels = np.random.default_rng(0).standard_normal((80, 5)), np.arange(80) % 4 - 1
    values[labels == 1] += 2
    known = labels >= 0
    near = NearestNeighbors(n_neighbors=2, metric="cosine").fit(values[known]).kneighbors(return_distance=False)[:, 0]
    hit = (labels[known][near] == labels[known]).mean()
    assert f"For {100 * hit:.1f} % of the images" in sentences.neighbours(values, labels)
    pairs = [a == b for a, b in itertools.combinations(labels[known], 2)]
    assert f"by chance it would be {100 * np.mean(pairs):.1f} %" in sentences.neighbours(values, labels)
    assert sentences.neighbours(values, np.zeros(80, np.int64)) == ""


# Pieces -----------------------------------------------------------------------------------------------------------------------


def test_names_of_files() -> None:
    names = [
        "a/cat.jpg",
        "b/cat.png",
        "b/Cat.gif",
        "cat-2.jpg",
        "..",
        "../../etc/passwd",
        "C:\\x\\nul.png",
        "日本語.webp",
        "-",
        "x" * 500,
    ]
    stems = unique_stems(names)
    assert stems == ["cat", "cat-2", "Cat-3", "cat-2-2", "image", "passwd", "image-nul", "日本語", "image-2", "x" * 100]
    assert len({stem.casefold() for stem in stems}) == len(names)
    for name in ("a\0b", "caf\udce9", "…", "  ", "\n", "é" * 99):
        stem = safe_stem(name)
        assert stem
        assert len(stem.encode()) <= 100
        assert Path(stem).name == stem


def test_tiles_are_a_column_for_each_layer() -> None:
    maps = random(3, 2, 4, 5)
    whole = tile_maps(maps)
    assert whole.shape == (2 * 5 - 1, 3 * 6 - 1, 3)
    for layer, head in np.ndindex(3, 2):
        tile = whole[head * 5 : head * 5 + 4, layer * 6 : layer * 6 + 5, 0]
        assert np.abs(tile - 255 * maps[layer, head] / maps[layer, head].max()).max() <= 0.5
    assert tile_maps(np.zeros((1, 1, 2, 2))).max() == 0


def test_points_keep_their_shape_and_stay_inside() -> None:
    points = np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0]])
    found = place_points(points)
    assert (found >= 0).all()
    assert (found <= [WIDTH, HEIGHT]).all()
    sides = [math.dist(found[a], found[b]) for a, b in ((0, 1), (1, 2))]
    assert sides[0] == pytest.approx(2 * sides[1])
    assert found[2, 1] < found[1, 1]  # up is up
    assert np.isfinite(place_points(np.zeros((3, 2)))).all()


def test_thumbnails_lie_row_by_row() -> None:
    pictures = np.zeros((ACROSS + 3, 8, 8, 3), np.uint8)
    pictures[ACROSS + 1] = 255
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(make_sprite(pictures).partition(",")[2]))))
    assert sheet.shape == (16, ACROSS * 8, 3)
    assert sheet[8:, 8:16].min() > 250
    assert sheet[:8].max() < 5


def test_classes_have_colours_of_their_own() -> None:
    for count in (1, 10, 11, 100):
        colours = class_colours(count)
        assert len(set(colours)) == count
        assert all(len(colour) == 7 for colour in colours)
