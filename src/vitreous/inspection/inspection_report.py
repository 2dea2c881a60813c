"""The page of an inspection: every figure with how to read it, what a healthy model shows and what this one shows.

One file that loads nothing. Without its script it says all it has to say; with it, the layers of a picture can be gone
through one by one, and points of the data map show their images.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.inspection import captions as sentences
from vitreous.inspection.captions import READINGS
from vitreous.inspection.figures import DPI
from vitreous.inspection.inspect_model import ImageInspection, Inspection
from vitreous.inspection.report_map import map_section
from vitreous.reports.html import asset, page, picture, scrolled, text

_POINTS = 96  # pixels that a page counts for an inch; figures have more, for screens that have more
_SIDE = 448  # pixels of a picture on the page
_TILE = 16  # pixels of a map, at least, in the picture of all layers and heads


@dataclass(frozen=True, eq=False)
class Seen:
    """Pictures of a closer look, (height, width, 3)."""

    picture: NDArray[np.uint8]
    rollout: NDArray[np.uint8] | None = None
    gradient: NDArray[np.uint8] | None = None
    activation: NDArray[np.uint8] | None = None
    animation: bytes | None = None  # WebP


def report(found: Inspection, told: Mapping[str, Any], drawn: Mapping[str, bytes], seen: Mapping[str, Seen]) -> str:
    """`told` is what inspect.json has, `drawn` the figures by name, as PNG, `seen` the pictures by stem."""
    title = f"Inside {told['checkpoint']}"
    styles = (asset("assets/results.css"), asset("assets/inspection.css"))
    body = "\n".join(_body(title, found, told, drawn, seen))
    return page(title, body, styles=styles, script=asset("assets/inspection.js"))


def _body(
    title: str, found: Inspection, told: Mapping[str, Any], drawn: Mapping[str, bytes], seen: Mapping[str, Seen]
) -> Iterator[str]:
    sections = [*_sections(found, drawn, seen)]
    links = "".join(f'<li><a href="#{name}">{text(READINGS[name].title)}</a></li>' for name, _ in sections)
    yield f'<header><h1>{text(title)}</h1><p class="verdict plain">{text(_headline(found))}</p>'
    contents = f'<nav aria-label="Figures"><ul class="contents">{links}</ul></nav>'
    yield f'<p class="quiet">{text(_facts(told))}</p>{contents}</header><main>'
    if told["notes"]:
        yield f'<ul class="notes">{"".join(f"<li>{text(note)}</li>" for note in told["notes"])}</ul>'
    for name, inside in sections:
        yield f'<section id="{name}"><h2>{text(READINGS[name].title)}</h2>{inside}</section>'
    yield f'<section id="settings"><h2>What was done</h2>{_settings(told)}</section>'
    beside = "Every number is in inspect.json beside this page."
    yield f"</main><footer>Made by vitreous {text(told['version'])}. {beside}</footer>"


def _headline(found: Inspection) -> str:
    config = found.clf.config
    height, width = found.image_size
    parts = [f"{config.name}, pictures of {height} x {width} pixels"]
    if found.survey is not None:
        layers, heads = found.survey.distance.shape
        rows, columns = found.grid
        parts.append(f"{layers} layers of {heads} heads")
        parts.append(f"{rows} x {columns} patches of {config.step[0]} x {config.step[1]} pixels")
        parts.append(f"{config.prefix_tokens or 'no'} leading token{'' if config.prefix_tokens == 1 else 's'}")
    return "; ".join(parts) + "."


def _facts(told: Mapping[str, Any]) -> str:
    survey = told["survey"]
    looks = len(told["looks"])
    looked = f"{looks} picture{'' if looks == 1 else 's'} looked at closely"
    return f"Means over {survey['images']:,} images of {told['images_of']}; {looked}." if survey else f"{looked}."


def _sections(found: Inspection, drawn: Mapping[str, bytes], seen: Mapping[str, Seen]) -> Iterator[tuple[str, str]]:
    """Name in READINGS and what stands there, of all that this model has."""
    survey = found.survey
    maps = [look.rollout for look in found.looks if look.rollout is not None]
    cards = "".join(_look(look, seen[look.stem]) for look in found.looks)
    if maps:
        more = _files("All of them in one figure", ["figures/rollout.png", "figures/rollout.svg"])
        yield "rollout", f"{_reading('rollout', sentences.concentration([*maps]))}{cards}{more}"
    elif any(look.activation is not None for look in found.looks):
        yield "class_activation", f"{_reading('class_activation', '')}{cards}"
    if survey is not None:
        shows = sentences.distance(survey.distance, found.uniform_distance)
        yield "attention_distance", _figure(drawn, "attention_distance", shows, "csv")
        yield "entropy", _figure(drawn, "entropy", sentences.entropy(survey.entropy, found.tokens), "csv")
    if found.filters is not None:
        name = "filters" if found.has_patches else "first_convolution"
        yield name, _figure(drawn, "filters", sentences.smoothness(found.filters), "npy", reading=name)
    if found.positions is not None:
        shows = sentences.positions(found.positions)
        yield "position_similarity", _figure(drawn, "position_similarity", shows, "npy")
    if survey is not None:
        shows = sentences.norms(survey.norms_quantiles, survey.leading_norms, float(survey.outlier_share))
        yield "token_norms", _figure(drawn, "token_norms", shows, "csv")
        shows = sentences.similarity(survey.similarity, survey.change)
        yield "token_similarity", _figure(drawn, "token_similarity", shows, "csv")
    if found.data_map is not None:
        cloud = found.data_map.cloud
        shows = sentences.neighbours(cloud.values, cloud.labels)
        links = _links("data_map", "csv")
        yield "data_map", f"{_reading('data_map', shows)}{map_section(found.data_map)}{links}"


# Pieces -----------------------------------------------------------------------------------------------------------------------


def _reading(name: str, shows: str) -> str:
    own = READINGS[name]
    parts = [("", "How to read it", own.how), ("", "What is healthy", own.healthy), (' class="own"', "This model", shows)]
    rows = "".join(f"<dt{kind}>{word}</dt><dd>{text(said)}</dd>" for kind, word, said in parts if said)
    return f'<dl class="reading-of">{rows}</dl>'


def _figure(drawn: Mapping[str, bytes], name: str, shows: str, ending: str, reading: str | None = None) -> str:
    """The picture, its sentences and where its numbers are. `ending` is that of the file with the numbers."""
    title = READINGS[reading or name].title
    with Image.open(io.BytesIO(drawn[name])) as opened:
        width, height = (round(pixels * _POINTS / DPI) for pixels in opened.size)
    size = f'width="{width}" height="{height}"'
    alternative = f"{title}: the figure that is described below"
    inside = f'<img class="drawn" {size} alt="{text(alternative)}" src="{_data("image/png", drawn[name])}">'
    links = _links(name, ending)
    return f"{scrolled(title, inside)}{_reading(reading or name, shows)}{links}"


def _links(name: str, ending: str) -> str:
    return _files("Beside this page", [f"figures/{name}.png", f"figures/{name}.svg", f"{name}.{ending}"])


def _files(words: str, files: list[str]) -> str:
    named = ", ".join(f'<a href="{text(quote(path))}">{text(path)}</a>' for path in files)
    return f'<p class="quiet files">{words}: {named}</p>'


def _look(look: ImageInspection, seen: Seen) -> str:
    views = [("the picture", seen.picture), ("attention rollout", seen.rollout), ("weighted by gradients", seen.gradient)]
    views.append((f"what speaks for {look.classes[0]}" if look.classes else "", seen.activation))
    figures = "".join(
        f'<figure class="view">{picture(pixels, f"{look.name}: {word}", _SIDE)}<figcaption>{text(word)}</figcaption></figure>'
        for word, pixels in views
        if pixels is not None
    )
    folders = {"rollout": "rollout", "gradient": "gradient_rollout", "activation": "class_activation", "heads": "attention"}
    files = [f"{folder}/{look.stem}.npy" for name, folder in folders.items() if getattr(look, name) is not None]
    moving = ""
    if seen.animation is not None:
        files.append(f"animation/{look.stem}.webp")
        alternative = f"{look.name}: what is attended to, layer by layer"
        source = _data("image/webp", seen.animation)
        moving = (
            "<details><summary>Layer after layer, as an animation</summary>"
            f'<img class="moving" loading="lazy" alt="{text(alternative)}" src="{source}"></details>'
        )
    heads = _heads(look) if look.heads is not None else ""
    return (
        f'<article class="look"><h3>{text(look.name)}</h3><div class="views">{figures}{_guesses(look)}</div>'
        f"{heads}{moving}{_files('Beside this page', files)}</article>"
    )


def _guesses(look: ImageInspection) -> str:
    if not look.classes:
        return ""
    rows = "".join(
        f'<li class="guess" style="--p:{value:.4f}"><span>{text(name)}</span><span>{100 * value:.1f} %</span></li>'
        for name, value in zip(look.classes, look.probabilities, strict=True)
    )
    return f'<ol class="guesses" aria-label="Likeliest classes">{rows}</ol>'


def _heads(look: ImageInspection) -> str:
    """All layers and heads as one small picture, which the script takes apart."""
    assert look.heads is not None
    layers, heads, rows, columns = look.heads.shape
    factor = -(-_TILE // max(rows, columns))
    enlarged = look.heads.repeat(factor, axis=2).repeat(factor, axis=3)
    shape = f'data-layers="{layers}" data-heads="{heads}" data-rows="{rows * factor}" data-columns="{columns * factor}"'
    source = _data("image/png", _png(tiles(enlarged)))
    alternative = f"{look.name}: what is attended to in each layer and head"
    image = f'<img class="tiles" loading="lazy" alt="{text(alternative)}" src="{source}">'
    return (
        f'<details class="heads" {shape}><summary>Every layer and head</summary>{scrolled("Layers and heads", image)}'
        f'<p class="quiet">A column is a layer, from 0 to {layers - 1}, a row a head; white is what is looked at most.</p>'
        "</details>"
    )


def tiles(maps: NDArray[np.floating]) -> NDArray[np.uint8]:
    """(layers, heads, rows, columns) as one picture: a column for each layer, a row for each head, a line of one pixel between.

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


def _png(pixels: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", optimize=True)
    return out.getvalue()


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _settings(told: Mapping[str, Any]) -> str:
    names = {
        "checkpoint": "checkpoint",
        "model": "model",
        "parameters": "weights",
        "preprocess": "preprocessing",
        "classes": "classes",
        "images_of": "means are over",
        "data": "--data",
        "seed": "--seed",
        "device": "device",
    }
    rows = "".join(
        f'<tr><th scope="row">{word}</th><td>{text(_said(told[name]))}</td></tr>'
        for name, word in names.items()
        if name in told
    )
    return scrolled("Settings", f'<table class="settings"><tbody>{rows}</tbody></table>')


def _said(value: object) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
