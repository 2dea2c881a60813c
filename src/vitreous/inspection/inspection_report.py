"""The report of an inspection: every figure with how to read it, what a healthy model shows and what this one shows."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.inspection import captions
from vitreous.inspection.captions import READINGS, Reading
from vitreous.inspection.figures import DPI
from vitreous.inspection.inspect_model import ImageInspection, Inspection
from vitreous.inspection.report_map import MapChart, map_chart
from vitreous.reports.image_cards import PredictionBar, prediction_bars
from vitreous.reports.images import EmbeddedImage, data_uri, embed_image, encode_image
from vitreous.reports.render import format_count, render

# Pixels that a page counts for an inch; figures have more, for screens that have more.
_PAGE_DPI = 96
# Pixels of an image on the page.
_SIDE = 448
# Pixels of a map, at least, in the image of all layers and heads.
_TILE = 16


@dataclass(frozen=True, eq=False)
class Seen:
    """Images of a closer look, (height, width, 3)."""

    picture: NDArray[np.uint8]
    rollout: NDArray[np.uint8] | None = None
    gradient: NDArray[np.uint8] | None = None
    activation: NDArray[np.uint8] | None = None
    animation: bytes | None = None
    """WebP."""


@dataclass(frozen=True)
class Figure:
    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class HeadMaps:
    """The attention of every layer and head as one image, which the script takes apart."""

    uri: str
    layers: int
    heads: int
    rows: int
    columns: int


@dataclass(frozen=True)
class LookCard:
    """One image, looked at closely."""

    name: str
    views: Sequence[tuple[str, EmbeddedImage]]
    predictions: Sequence[PredictionBar]
    heads: HeadMaps | None
    animation: str | None
    files: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Section:
    name: str
    reading: Reading
    shows: str
    """What this model shows."""
    figure: Figure | None = None
    looks: Sequence[LookCard] = ()
    map: MapChart | None = None
    files: Sequence[tuple[str, str]] = ()
    """Address and path of each."""


def render_report(found: Inspection, about: Mapping[str, Any], drawn: Mapping[str, bytes], seen: Mapping[str, Seen]) -> str:
    """`about` is what inspect.json has, `drawn` the figures by name, as PNG, `seen` the images by stem."""
    return render(
        "inspection.html",
        title=f"Inside {about['checkpoint']}",
        verdict=_headline(found),
        verdict_style="plain",
        facts=_facts(about),
        notes=about["notes"],
        sections=list(_sections(found, drawn, seen)),
        settings=_settings(about),
    )


def _headline(found: Inspection) -> str:
    config = found.clf.config
    height, width = found.image_size
    parts = [f"{config.name}, images of {height} x {width} pixels"]
    if found.survey is not None:
        layers, heads = found.survey.distance.shape
        rows, columns = found.grid
        parts.append(f"{layers} layers of {heads} heads")
        parts.append(f"{rows} x {columns} patches of {config.step[0]} x {config.step[1]} pixels")
        parts.append(f"{config.prefix_tokens or 'no'} leading token{'' if config.prefix_tokens == 1 else 's'}")
    return "; ".join(parts) + "."


def _facts(about: Mapping[str, Any]) -> str:
    survey = about["survey"]
    looked = f"{format_count(len(about['looks']), 'image')} looked at closely"
    return f"Means over {survey['images']:,} images of {about['images_of']}; {looked}." if survey else f"{looked}."


def _sections(found: Inspection, drawn: Mapping[str, bytes], seen: Mapping[str, Seen]) -> Iterator[Section]:
    """All that this model has."""

    def with_figure(name: str, shows: str, ending: str, reading: str = "") -> Section:
        """`ending` is that of the file with the numbers."""
        figure = _figure(drawn[name])
        return Section(reading or name, READINGS[reading or name], shows, figure, files=_figure_files(name, ending))

    survey = found.survey
    maps = [look.rollout for look in found.looks if look.rollout is not None]
    looks = [_look_card(look, seen[look.stem]) for look in found.looks]
    if maps:
        files = _links(["figures/rollout.png", "figures/rollout.svg"])
        yield Section("rollout", READINGS["rollout"], captions.concentration([*maps]), looks=looks, files=files)
    elif any(look.activation is not None for look in found.looks):
        yield Section("class_activation", READINGS["class_activation"], "", looks=looks)
    if survey is not None:
        yield with_figure("attention_distance", captions.distance(survey.distance, found.uniform_distance), "csv")
        yield with_figure("entropy", captions.entropy(survey.entropy, found.tokens), "csv")
    if found.filters is not None:
        reading = "filters" if found.has_patches else "first_convolution"
        yield with_figure("filters", captions.smoothness(found.filters), "npy", reading)
    if found.positions is not None:
        yield with_figure("position_similarity", captions.positions(found.positions), "npy")
    if survey is not None:
        shows = captions.norms(survey.norms_quantiles, survey.leading_norms, float(survey.outlier_share))
        yield with_figure("token_norms", shows, "csv")
        yield with_figure("token_similarity", captions.similarity(survey.similarity, survey.change), "csv")
    if found.data_map is not None:
        cloud = found.data_map.cloud
        yield Section(
            "data_map",
            READINGS["data_map"],
            captions.neighbours(cloud.values, cloud.labels),
            map=map_chart(found.data_map),
            files=_figure_files("data_map", "csv"),
        )


def _figure(png: bytes) -> Figure:
    with Image.open(io.BytesIO(png)) as opened:
        width, height = (round(pixels * _PAGE_DPI / DPI) for pixels in opened.size)
    return Figure(data_uri("png", png), width, height)


def _figure_files(name: str, ending: str) -> list[tuple[str, str]]:
    return _links([f"figures/{name}.png", f"figures/{name}.svg", f"{name}.{ending}"])


def _links(paths: Sequence[str]) -> list[tuple[str, str]]:
    return [(quote(path), path) for path in paths]


def _look_card(look: ImageInspection, seen: Seen) -> LookCard:
    views = {
        "the image": seen.picture,
        "attention rollout": seen.rollout,
        "weighted by gradients": seen.gradient,
        f"evidence for {look.classes[0]}" if look.classes else "": seen.activation,
    }
    folders = {"rollout": "rollout", "gradient": "gradient_rollout", "activation": "class_activation", "heads": "attention"}
    files = [f"{folder}/{look.stem}.npy" for name, folder in folders.items() if getattr(look, name) is not None]
    if seen.animation is not None:
        files.append(f"animation/{look.stem}.webp")
    predictions = zip(look.classes, look.probabilities, strict=True)
    return LookCard(
        look.name,
        views=[(caption, embed_image(pixels, _SIDE)) for caption, pixels in views.items() if pixels is not None],
        predictions=prediction_bars(((name, value, False) for name, value in predictions), digits=1),
        heads=_head_maps(look.heads) if look.heads is not None else None,
        animation=data_uri("webp", seen.animation) if seen.animation is not None else None,
        files=_links(files),
    )


def _head_maps(maps: NDArray[np.float32]) -> HeadMaps:
    layers, heads, rows, columns = maps.shape
    factor = -(-_TILE // max(rows, columns))
    enlarged = maps.repeat(factor, axis=2).repeat(factor, axis=3)
    uri = encode_image(Image.fromarray(tile_maps(enlarged)), "PNG", optimize=True)
    return HeadMaps(uri, layers, heads, rows * factor, columns * factor)


def tile_maps(maps: NDArray[np.floating]) -> NDArray[np.uint8]:
    """(layers, heads, rows, columns) as one image: a column for each layer, a row for each head, a line of one pixel between.

    Each tile goes from 0 to its own largest value.
    """
    layers, heads, rows, columns = maps.shape
    highest = maps.max(axis=(2, 3), keepdims=True)
    grey = np.round(255 * maps / np.where(highest > 0, highest, 1)).astype(np.uint8)
    whole = np.empty((heads * (rows + 1) - 1, layers * (columns + 1) - 1, 3), np.uint8)
    whole[:] = (104, 116, 138)
    for layer, head in np.ndindex(layers, heads):
        top, left = head * (rows + 1), layer * (columns + 1)
        whole[top : top + rows, left : left + columns] = grey[layer, head, :, :, None]
    return whole


def _settings(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = {
        "checkpoint": "checkpoint",
        "model": "model",
        "parameters": "parameters",
        "preprocess": "preprocessing",
        "classes": "classes",
        "images_of": "means are over",
        "data": "--data",
        "seed": "--seed",
        "device": "device",
    }
    return [(word, _format(about[name])) for name, word in names.items() if name in about]


def _format(value: object) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
