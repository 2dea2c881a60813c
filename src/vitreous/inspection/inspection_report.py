"""The report of an inspection: every figure with how to read it, what a healthy model shows and what this one shows."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.inspection import captions
from vitreous.inspection.captions import READINGS
from vitreous.inspection.figures import DPI
from vitreous.inspection.inspect_model import ImageInspection, Inspection
from vitreous.inspection.report_map import map_chart
from vitreous.reports.images import data_uri, embed_image, encode_image
from vitreous.reports.render import format_count, render

# Pixels that a page counts for an inch; figures have more, for screens that have more.
_PAGE_DPI = 96
# Pixels of an image on the page.
_SIDE = 448
# Pixels of a map, at least, in the image of all layers and heads.
_TILE = 16


def render_inspection_report(
    found: Inspection, about: Mapping[str, Any], drawn: Mapping[str, bytes], cards: Sequence[Mapping[str, Any]]
) -> str:
    """`about` is what inspect.json has, `drawn` the figures by name, as PNG, `cards` the images (`look_card`)."""
    return render(
        "inspection.html",
        title=f"Inside {about['checkpoint']}",
        verdict=_headline(found),
        verdict_style="plain",
        facts=_facts(about),
        notes=about["notes"],
        sections=list(_sections(found, drawn, cards)),
        settings=_settings(about),
    )


def _headline(found: Inspection) -> str:
    config = found.clf.config
    height, width = found.image_size
    parts = [f"{config.name}, images of {height} x {width} pixels"]
    if found.survey is not None:
        layers, heads = found.survey.distance.shape
        rows, columns = found.grid
        parts += [
            f"{layers} layers of {heads} heads",
            f"{rows} x {columns} patches of {config.step[0]} x {config.step[1]} pixels",
            f"{config.prefix_tokens or 'no'} leading token{'' if config.prefix_tokens == 1 else 's'}",
        ]
    return "; ".join(parts) + "."


def _facts(about: Mapping[str, Any]) -> str:
    survey = about["survey"]
    looked = f"{format_count(len(about['looks']), 'image')} looked at closely"
    return f"Means over {survey['images']:,} images of {about['images_of']}; {looked}." if survey else f"{looked}."


def _sections(found: Inspection, drawn: Mapping[str, bytes], cards: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """All that this model has: how each is read, and what this model `shows`."""

    def section(name: str, shows: str, files: Sequence[str], **parts: Any) -> dict[str, Any]:
        empty: dict[str, Any] = {"figure": None, "looks": (), "map": None}
        return {"name": name, "reading": READINGS[name], "shows": shows, "files": _links(files), **empty, **parts}

    def with_figure(name: str, shows: str, ending: str, reading: str = "") -> dict[str, Any]:
        """`ending` is that of the file with the numbers."""
        return section(reading or name, shows, _figure_files(name, ending), figure=_figure(drawn[name]))

    survey = found.survey
    if maps := [look.maps["rollout"] for look in found.looks if "rollout" in look.maps]:
        yield section("rollout", captions.concentration(maps), _figure_files("rollout"), looks=cards)
    elif found.looks:
        yield section("class_activation", "", [], looks=cards)
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
    if found.component_share is not None:
        shows = captions.components(found.component_share, len(found.looks))
        yield section("patch_components", shows, _figure_files("patch_components"), figure=_figure(drawn["patch_components"]))
        shows = captions.alike([look.patches for look in found.looks if look.patches is not None])
        yield section("patch_similarity", shows, _figure_files("patch_similarity"), figure=_figure(drawn["patch_similarity"]))
    if found.data_map is not None:
        features = found.data_map.features
        shows = captions.neighbours(features.values, features.targets())
        yield section("data_map", shows, _figure_files("data_map", "csv"), map=map_chart(found.data_map))


def _figure(png: bytes) -> dict[str, Any]:
    with Image.open(io.BytesIO(png)) as opened:
        width, height = (round(pixels * _PAGE_DPI / DPI) for pixels in opened.size)
    return {"uri": data_uri("png", png), "width": width, "height": height}


def _figure_files(name: str, *numbers: str) -> list[str]:
    return [f"figures/{name}.png", f"figures/{name}.svg", *(f"{name}.{ending}" for ending in numbers)]


def _links(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Address and path of each."""
    return [(quote(path), path) for path in paths]


def look_card(look: ImageInspection, views: Mapping[str, NDArray[np.uint8]], animation: bytes | None) -> dict[str, Any]:
    """One image, looked at closely; `views` are images by caption, (height, width, 3), `animation` is WebP."""
    folders = [*look.maps, *(("patch_components", "patch_similarity") if look.patches is not None else ())]
    files = [f"{folder}/{look.stem}.npy" for folder in folders]
    return {
        "name": look.name,
        "views": [(caption, embed_image(pixels, _SIDE)) for caption, pixels in views.items()],
        "predictions": [(name, value, False) for name, value in zip(look.classes, look.probabilities, strict=True)],
        "heads": _head_maps(look.maps["attention"]) if "attention" in look.maps else None,
        "animation": data_uri("webp", animation) if animation is not None else None,
        "files": _links([*files, f"animation/{look.stem}.webp"] if animation is not None else files),
    }


def _head_maps(maps: NDArray[np.float32]) -> dict[str, Any]:
    """The attention of every layer and head as one image, which the script takes apart."""
    layers, heads, rows, columns = maps.shape
    factor = -(-_TILE // max(rows, columns))
    enlarged = maps.repeat(factor, axis=2).repeat(factor, axis=3)
    uri = encode_image(Image.fromarray(tile_maps(enlarged)), "PNG", optimize=True)
    return {"uri": uri, "layers": layers, "heads": heads, "rows": rows * factor, "columns": columns * factor}


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
