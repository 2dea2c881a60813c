"""Captions of the figures: how to read each, what a healthy model shows, and what this one shows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_NEAR = 0.5  # of the distance of uniform attention: below, a head looks around its own place
_FAR = 0.9  # from here on it looks across the whole image

Values = NDArray[np.floating]


class Reading(NamedTuple):
    title: str
    subtitle: str  # in plain words
    how: str  # to read it
    healthy: str


READINGS = {
    "rollout": Reading(
        "Attention rollout",
        "Where it looked.",
        "Bright patches are those from which most has reached the output through all layers (attention rollout, figures 6 and "
        "14 of the paper: attention averaged over heads, skip connections added, layers multiplied). In the third panel each "
        "attention counts by what it did for the predicted class (without classes: for the length of the features).",
        "A healthy model lights up the thing it names and leaves the background dark. Single glaring patches in empty "
        "background are outlier tokens (see token norms), not something it saw.",
    ),
    "class_activation": Reading(
        "Class activation map",
        "Where it looked.",
        "Bright places add to the score of the predicted class; the score is their mean, so this is exact (class activation).",
        "A healthy model lights up the thing it names. Where background shines, the background may be what it has learnt.",
    ),
    "attention_distance": Reading(
        "Attention distance",
        "How far it looks.",
        "A dot is a head: the mean distance in pixels between a patch and what it attends to (figures 7 right and 11). The "
        "thin line through a dot is its standard error over images.",
        "In a healthy model the heads of the first layers differ, some looking around their own patch and some across the "
        "image; in the last layers nearly all look far. All dots on one level in every layer mean heads that have not learnt "
        "to differ. After a convolutional trunk few heads look near: it has done that work.",
    ),
    "entropy": Reading(
        "Attention entropy",
        "How sharply it looks.",
        "A dot is a head: the entropy of its attention in bits. The line at the top is uniform attention, 0 is "
        "looking at one alone.",
        "In a healthy model heads differ, and most lie between the two ends. Heads at the top have learnt nothing to look for; "
        "whole layers near 0 are a known sign of unstable training.",
    ),
    "filters": Reading(
        "Patch-embedding filters",
        "What it looks for in a patch.",
        "The directions in which the embedding of patches varies most, strongest first (figure 7 left).",
        "A healthy model has smooth waves, edges and colour contrasts, the coarse ones first. Grainy noise means that "
        "training was too short, or too much was learnt by heart.",
    ),
    "first_convolution": Reading(
        "Filters of the first convolution",
        "What it looks for first.",
        "The kernels of the first convolution, each scaled by itself.",
        "A healthy model has edges, waves and colour contrasts; grainy noise means that training was too short.",
    ),
    "position_similarity": Reading(
        "Position-embedding similarity",
        "What it knows of places in the image.",
        "Each tile belongs to one place of the grid and shows how similar its position embedding is to those of all places "
        "(figures 7 centre and 10).",
        "In a healthy model each tile is brightest at its own place and fades with distance, often along its row and column: "
        "it has learnt that the image is a grid. Tiles without a pattern mean that it uses positions little.",
    ),
    "token_norms": Reading(
        "Token norms",
        "How long its tokens are.",
        "The lengths of the patch tokens after each layer: the dark band holds the middle half of them, the pale one all. "
        "Beside them the leading tokens, which stand before the patches (class token, registers).",
        "In a healthy model lengths change smoothly and the longest stay near the others. A few patches that are many times "
        "longer in the last layers are outliers: large models use patches of empty background as notepads, which spoils "
        "their maps; register tokens prevent it (Darcet and others, 2023).",
    ),
    "token_similarity": Reading(
        "Token similarity",
        "How alike its tokens become.",
        "The mean cosine similarity between two patches of an image after each layer, and between a patch and itself one "
        "layer before: 1 is the same direction, 0 is nothing in common.",
        "In a healthy model patches may grow more alike with depth, but not the same: near 1, what lies where is lost. Where a "
        "patch hardly differs from itself one layer before, that layer does little.",
    ),
    "patch_components": Reading(
        "Principal components of patch features",
        "What it tells apart.",
        "The first three principal components of the features of all patches, as red, green and blue. They are fitted over all "
        "images of this page together: patches of the same colour have similar features, in one image or in two.",
        "In a healthy model things stand out from what is behind them, and the same part has the same colour in several "
        "images. Colours that follow the place in the image and not its content show positions; specks of one colour, noise.",
    ),
    "patch_similarity": Reading(
        "Patch similarity",
        "Which patches are similar to it.",
        "How similar the features of every patch are to those of the framed one (cosine): yellow is 1, dark the lowest value "
        "of the map. The first frame is in the middle, each further one where it is least similar to those before.",
        "In a healthy model what belongs to the same thing lights up, with an edge where it ends. A bright spot around the "
        "frame that ignores edges means that features tell places more than content.",
    ),
    "data_map": Reading(
        "Map of the data",
        "Which images have similar features.",
        "A point is an image; images with similar features lie together. Colours are classes. Directions and empty space mean "
        "nothing, and the sizes of clouds mean little.",
        "Features of a healthy model gather each class in a cloud of its own, also without its having been trained on these "
        "classes. A point in another class's cloud is a hard image or a wrong label: look at it.",
    ),
}


def distance(values: Values, uniform: float) -> str:
    """(layers, heads), and the distance of uniform attention."""
    first, last = values[0], values[-1]
    heads = len(first)
    near, far = int((first < _NEAR * uniform).sum()), int((first >= _FAR * uniform).sum())
    end = f" In the last layer they look {_between(last)} pixels far." if len(values) > 1 else ""
    return (
        f"In layer 0 the heads look {_between(first)} pixels far; uniform attention would be {uniform:.3g}. "
        f"Of {heads} heads, {_heads(near)} around their own patch and {far or 'none'} across the whole image.{end}"
    )


def entropy(values: Values, tokens: int) -> str:
    top = math.log2(tokens)
    lowest, highest = (np.unravel_index(int(at), values.shape) for at in (values.argmin(), values.argmax()))
    alike, sharp = int((values > 0.95 * top).sum()), int((values < 0.1 * top).sum())
    return (
        f"From {values[lowest]:.2f} bits (layer {lowest[0]}, head {lowest[1]}) to {values[highest]:.2f} (layer {highest[0]}, "
        f"head {highest[1]}); uniform attention is {top:.2f}. Of {values.size} heads, {_heads(alike)} nearly "
        f"uniformly and {sharp or 'none'} at nearly one token."
    )


def norms(quantiles: Values, leading: Values, outlier_share: float) -> str:
    """(depth + 1, 5), (depth + 1, prefix), and the share of outliers among the last layer's patches."""
    growth = quantiles[-1, 2] / quantiles[0, 2] if quantiles[0, 2] > 0 else math.inf
    grown = f", {growth:.2g} times" if math.isfinite(growth) else ""
    outliers = f"{100 * outlier_share:.2g} % of patches are outliers" if outlier_share > 0 else "No patch is an outlier"
    token = f", the first leading token {_times(leading[-1, 0], quantiles[-1, 2])}" if leading.shape[1] else ""
    return (
        f"The median length goes from {quantiles[0, 2]:.3g} to {quantiles[-1, 2]:.3g}{grown}. {outliers}. After the last layer "
        f"the longest patch has {_times(quantiles[-1, 4], quantiles[-1, 2])} the median{token}."
    )


def similarity(alike: Values, change: Values) -> str:
    """(depth + 1,) and (depth,). One patch alone has no other to be like."""
    if not np.isfinite(alike).all():
        return ""
    least = int(change.argmin())
    return (
        f"Two patches have a similarity of {alike[0]:.2f} after the embedding and {alike[-1]:.2f} after the last layer. "
        f"Layer {least} changes patches most: they keep a similarity of {change[least]:.2f} with what they were."
    )


def components(share: float, images: int) -> str:
    """The share of the variance of patch features that three components hold, over so many images."""
    over = f"over {images} images" if images > 1 else "of this image"
    return f"Three components hold {100 * share:.0f} % of the variance of patch features {over}."


def alike(patches: list[Values]) -> str:
    """Of patch features (rows, columns, D), image by image: neighbours against any two."""
    near, all_pairs = [], []
    for values in patches:
        unit = values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)
        near += [(unit[1:] * unit[:-1]).sum(axis=-1).ravel(), (unit[:, 1:] * unit[:, :-1]).sum(axis=-1).ravel()]
        count = unit.shape[0] * unit.shape[1]
        if count > 1:
            all_pairs.append(((unit.sum(axis=(0, 1)) ** 2).sum() - (unit**2).sum()) / (count * (count - 1)))
    if not all_pairs:
        return ""
    neighbours = np.concatenate(near).mean()
    return (
        f"Direct neighbours have a mean similarity of {neighbours:.2f}, any two patches of an image {np.mean(all_pairs):.2f}."
    )


def positions(values: Values) -> str:
    """(rows, columns, rows, columns)."""
    rows, columns = values.shape[:2]
    row, column = np.indices((rows, columns)).reshape(2, -1)
    down, across = abs(row[:, None] - row[None]), abs(column[:, None] - column[None])
    flat = values.reshape(rows * columns, rows * columns)
    neighbours, aligned = down + across == 1, ((down == 0) != (across == 0)) & (down + across > 1)
    parts = [
        f"{what} {flat[where].mean():.2f}"
        for what, where in (
            ("direct neighbours", neighbours),
            ("other places of the same row or column", aligned),
            ("all the rest", (down > 0) & (across > 0)),
        )
        if where.any()
    ]
    return f"Mean cosine similarity: {', '.join(parts)}." if parts else ""


def smoothness(values: Values) -> str:
    """Of filters (k, height, width, channels): how much a pixel resembles its neighbour."""
    if min(values.shape[1:3]) < 4:
        return ""
    centred = values - values.mean(axis=(1, 2), keepdims=True)
    power = (centred**2).mean()
    if not power > 0:
        return "They are all flat: nothing has been learnt."
    down, across = (centred[:, 1:] * centred[:, :-1]).mean(), (centred[:, :, 1:] * centred[:, :, :-1]).mean()
    return f"Neighbouring pixels of these filters correlate with {(down + across) / 2 / power:.2f}; noise would give about 0."


def concentration(maps: list[Values]) -> str:
    """Of rollouts (rows, columns): how few patches make up half of what comes from patches."""
    shares = []
    for values in maps:
        flat = np.sort(values.ravel())[::-1]
        if flat.sum() > 0:
            shares.append((int(np.searchsorted(np.cumsum(flat), flat.sum() / 2)) + 1) / len(flat))
    if not shares:
        return ""
    share = 100 * float(np.mean(shares))
    return f"Half of what comes from patches comes from {share:.0f} % of them; if all counted alike, it would be 50 %."


def neighbours(features: Values, labels: NDArray[np.int64]) -> str:
    """How often the most similar other image has the same label; by cosine, in the features themselves."""
    known = labels >= 0
    values, own = features[known].astype(np.float64), labels[known]
    if len(own) < 2 or len(np.unique(own)) < 2:
        return ""
    values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    alike = values @ values.T
    np.fill_diagonal(alike, -np.inf)
    hit = float((own[alike.argmax(axis=1)] == own).mean())
    counts = np.bincount(own)
    chance = float((counts * (counts - 1)).sum() / (len(own) * (len(own) - 1)))
    return (
        f"For {100 * hit:.1f} % of the images the most similar other image, by the features themselves, has the same class; "
        f"by chance it would be {100 * chance:.1f} %."
    )


def _heads(count: int) -> str:
    return "1 looks" if count == 1 else f"{count or 'none'} look"


def _between(values: Values) -> str:
    return f"{values.min():.3g} to {values.max():.3g}"


def _times(value: float, of: float) -> str:
    return f"{value / of:.2g} times" if of > 0 else "infinitely many times"
