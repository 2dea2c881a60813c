"""The map of the data on the page: points coloured by class, which the script lets show their images.

Without the script a point still tells its class and id, as its title. The thumbnails are one picture, cut by the script: two
thousand small ones would take far more room.
"""

from __future__ import annotations

import base64
import colorsys
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.inspection.inspect_model import DataMap
from vitreous.reports.html import text

WIDTH, HEIGHT, _EDGE = 720, 520, 14
ACROSS = 50  # thumbnails in a row
_MANY = 600  # points from which they are drawn smaller
_LISTED = 60  # classes in the legend
_TURN = 0.381966  # of a circle, the golden section of it: each new hue falls into the largest gap

# Ten that are told apart on light and on dark paper; more classes than that get hues by turns.
_COLOURS = ("#4f83cc", "#d9822b", "#3f9c6b", "#c94f4f", "#8b6fc0", "#a3764f", "#d06fa5", "#7f8794", "#9a9a2e", "#2fa3b5")


def map_section(data_map: DataMap) -> str:
    cloud = data_map.cloud
    colours = class_colours(len(cloud.classes))
    radius = 3 if len(cloud.ids) > _MANY else 4.5
    places = place_points(data_map.points)
    points = "".join(
        f'<g class="p" data-class="{label}" data-at="{at}"><title>{text(_name(data_map, label))}: {text(name)}</title>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colours[label] if label >= 0 else "#888888"}"/></g>'
        for at, (name, label, (x, y)) in enumerate(zip(cloud.ids, cloud.labels.tolist(), places.tolist(), strict=True))
    )
    title = f"{len(cloud.ids):,} images of {cloud.where}, placed by {_METHODS.get(data_map.method, data_map.method)}"
    side = cloud.thumbnails.shape[1]
    thumbnails = (
        f'<img id="thumbnails" hidden alt="" data-side="{side}" data-across="{ACROSS}" src="{sprite(cloud.thumbnails)}">'
    )
    return (
        f'<div class="map"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">{points}</svg>{thumbnails}'
        f'<p class="told" role="status"></p></div><p class="quiet">{text(title)}.</p>{_legend(data_map, colours)}'
    )


_METHODS = {"tsne": "t-SNE, which keeps neighbours together", "pca": "PCA, the two directions in which features vary most"}


def _name(data_map: DataMap, label: int) -> str:
    return data_map.cloud.classes[label] if label >= 0 else "no class"


def _legend(data_map: DataMap, colours: list[str]) -> str:
    labels, counts = np.unique(data_map.cloud.labels, return_counts=True)
    order = np.argsort(-counts, kind="stable") if len(labels) > _LISTED else np.arange(len(labels))
    rows = "".join(
        f'<li data-class="{label}"><i style="background:{colours[label] if label >= 0 else "#888888"}"></i>'
        f'{text(_name(data_map, label))} <span class="quiet">{count:,}</span></li>'
        for label, count in zip(labels[order[:_LISTED]].tolist(), counts[order[:_LISTED]].tolist(), strict=True)
    )
    more = f"<li>and {len(labels) - _LISTED:,} more classes</li>" if len(labels) > _LISTED else ""
    return f'<ul class="legend" aria-label="Classes">{rows}{more}</ul>'


def class_colours(count: int) -> list[str]:
    if count <= len(_COLOURS):
        return list(_COLOURS[:count])
    turns = (colorsys.hls_to_rgb(k * _TURN % 1, (0.5, 0.62, 0.4)[k % 3], 0.55) for k in range(count))
    return [f"#{round(255 * r):02x}{round(255 * g):02x}{round(255 * b):02x}" for r, g, b in turns]


def place_points(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """In pixels of the drawing, as large as it allows and in the shape they have."""
    low, high = points.min(axis=0), points.max(axis=0)
    room = np.array([WIDTH - 2 * _EDGE, HEIGHT - 2 * _EDGE])
    span = np.where(high > low, high - low, 1.0)
    scale = (room / span).min()
    centred = (points - (low + high) / 2) * scale * np.array([1, -1])  # up is up
    return np.asarray(centred + np.array([WIDTH, HEIGHT]) / 2)


def sprite(thumbnails: NDArray[np.uint8]) -> str:
    """All thumbnails as one picture, row by row, as a data URI."""
    count, side = len(thumbnails), thumbnails.shape[1]
    rows = -(-count // ACROSS)
    whole = np.zeros((rows * ACROSS, side, side, 3), np.uint8)
    whole[:count] = thumbnails
    sheet = whole.reshape(rows, ACROSS, side, side, 3).transpose(0, 2, 1, 3, 4).reshape(rows * side, ACROSS * side, 3)
    out = io.BytesIO()
    Image.fromarray(sheet).save(out, "JPEG", quality=75)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
