"""The map of the data on an inspection's report: points coloured by class, and their thumbnails.

Without the script a point still has its class and id, as its title. The thumbnails are one image, cut up by the script: two
thousand small ones would take far more room.
"""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.inspection.data_map import DataMap
from vitreous.reports.images import encode_image

WIDTH, HEIGHT, _EDGE = 720, 520, 14
ACROSS = 50
"""Thumbnails in a row."""
# Points from which they are drawn smaller.
_MANY = 600
# Classes in the legend.
_LISTED = 60
# Of a circle, the golden section of it: each new hue falls into the largest gap.
_TURN = 0.381966
# Ten that are told apart on light and on dark paper; more classes than that get hues by turns.
_COLOURS = ("#4f83cc", "#d9822b", "#3f9c6b", "#c94f4f", "#8b6fc0", "#a3764f", "#d06fa5", "#7f8794", "#9a9a2e", "#2fa3b5")
_METHODS = {"tsne": "t-SNE, which keeps neighbours together", "pca": "PCA, the two directions in which features vary most"}


def map_chart(data_map: DataMap) -> dict[str, Any]:
    """As `templates/inspection.html` draws it; `thumbnails` is one image with `across` in a row, each of `side` pixels."""
    features, targets = data_map.features, data_map.features.targets()
    colours = class_colours(len(features.classes))
    labels, counts = np.unique(targets, return_counts=True)
    classes = {
        label: (features.classes[label], colours[label], count) if label >= 0 else ("no class", "#888888", count)
        for label, count in zip(labels.tolist(), counts.tolist(), strict=True)
    }
    by_count = sorted(classes, key=lambda label: -classes[label][2])
    method = _METHODS.get(data_map.method, data_map.method)
    return {
        "title": f"{len(features):,} images of {data_map.where}, placed by {method}",
        "width": WIDTH,
        "height": HEIGHT,
        "radius": 3 if len(features) > _MANY else 4.5,
        "points": zip(features.ids, targets.tolist(), place_points(data_map.points).tolist(), strict=True),
        "classes": classes,
        "legend": list(classes) if len(classes) <= _LISTED else by_count[:_LISTED],
        "thumbnails": make_sprite(data_map.thumbnails),
        "across": ACROSS,
        "side": data_map.thumbnails.shape[1],
    }


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
    # Up is up.
    centred = (points - (low + high) / 2) * scale * np.array([1, -1])
    return np.asarray(centred + np.array([WIDTH, HEIGHT]) / 2)


def make_sprite(thumbnails: NDArray[np.uint8]) -> str:
    """All thumbnails as one image, row by row, as a data URI."""
    count, side = len(thumbnails), thumbnails.shape[1]
    rows = -(-count // ACROSS)
    whole = np.zeros((rows * ACROSS, side, side, 3), np.uint8)
    whole[:count] = thumbnails
    sheet = whole.reshape(rows, ACROSS, side, side, 3).transpose(0, 2, 1, 3, 4).reshape(rows * side, ACROSS * side, 3)
    return encode_image(Image.fromarray(sheet), "JPEG", quality=75)
