"""Search fingerprints for near duplicates: re-encoded, resized, cropped, mirrored, rotated, framed.

1. Every image has a short description. It is looked up, through every window, in a forest of hash trees; only images
   that fall into the same leaf are compared, which is why the work does not grow with the product of the sizes.
2. What looks alike is compared by a longer description that allows for a small crop, then by shape and colour.
3. What is left is aligned pixel by pixel and must agree in its details.
4. Tiny images resemble each other by chance: the more lookalikes one has, the more closely a copy must agree.
5. `confirm` repeats the third step on the images themselves. Photographs in which most of the frame is the same, such as
   shirts on a plain ground, can agree in a fingerprint; the pair that `search` gives is certain only when confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.core.progress import Advance
from vitreous.doctor import fingerprint
from vitreous.doctor.alignment import Agreement, Windows, align
from vitreous.doctor.border import remove_border
from vitreous.doctor.description import CENTRAL, EDGE, LONG, WINDOWS, Window, describe_images, orient, tangents
from vitreous.doctor.fingerprint import Fingerprints, Prints
from vitreous.doctor.vector_search import Tree, build_tree, lookup

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

# Where the copies measured in docs/reference/near-duplicates.md lie: all but one in 200 are above each of these.
NEAR = 0.88  # cosine of two short descriptions
LIKELY = 0.945  # cosine of a long description and the other's tangents
OVERALL = 0.94  # correlation of the aligned images
SAME = 0.93  # similarity from which two images are one

TREES = 16
MANY = 64  # partners taken from one leaf: a thousand equal images are reported as chains, not as half a million pairs
OCTAVES = 0.5  # width : height may differ by a factor of 1.4
COLOURFUL, GREY = 6.0, 2.0  # mean difference from grey, of 128, in an image whose colours can be compared, or that has none
HUE = 0.75  # cosine of the colours of two colourful images

TINY = 64  # pixels along the shorter side: below, a second look at the image shows little that its fingerprint does not

SAME_IMAGE = "same image"  # what can be said of the way where nothing can

_CHUNK = 512  # images looked up together
_BATCH = 128  # pairs aligned together: more do not fit the cache
_FINE = 96  # pixels: the side at which images are confirmed


@dataclass(frozen=True)
class Pair:
    first: int
    second: int
    similarity: float  # SAME to 1
    how: str
    trimmed: tuple[tuple[bool, bool], ...] = ((False, False),)  # whether each was without its border when they agreed


@dataclass
class Search:
    """The pairs, and what finding them took."""

    pairs: list[Pair] = field(default_factory=list)
    compared: int = 0  # short descriptions
    aligned: int = 0  # pairs


def find_near_duplicates(
    prints: Fingerprints, others: Fingerprints | None = None, *, advance: Advance = lambda more: None
) -> list[Pair]:
    """The pairs of items within `prints` (first < second), or between `prints` and `others`, the most similar first.

    An item with a border is looked for twice, with it and without. `advance` is called with how many more fingerprints of
    `prints`, or of the smaller set, were looked up.
    """
    kept = prints if others is None else others
    best: dict[tuple[int, int], Pair] = {}
    for pair in search(prints.rows, None if others is None else others.rows, advance=advance).pairs:
        items = int(prints.items[pair.first]), int(kept.items[pair.second])
        trimmed = bool(prints.trimmed[pair.first]), bool(kept.trimmed[pair.second])
        if others is None and items[0] == items[1]:
            continue  # an image and its own inside
        known = best.get(items) or replace(pair, first=items[0], second=items[1], trimmed=())
        best[items] = replace(known, trimmed=(*known.trimmed, trimmed))
    how = {SAME_IMAGE: "border"}
    return [
        replace(pair, how=how.get(pair.how, f"border, {pair.how}")) if all(map(any, pair.trimmed)) else pair
        for pair in best.values()
    ]


def search(prints: Prints, others: Prints | None = None, *, advance: Advance = lambda more: None) -> Search:
    """The pairs of fingerprints by number, and what finding them took."""
    out = Search()
    swap = others is not None and len(others) < len(prints)  # the smaller set is looked up in the larger one
    queries, kept = (prints, prints) if others is None else (others, prints) if swap else (prints, others)
    asking, places = (np.flatnonzero(~fingerprint.is_flat(p)) for p in (queries, kept))
    advance(len(queries) - len(asking))
    if not len(asking) or not len(places):
        return out
    short, long = _describe(kept, places)
    forest = [build_tree(short, seed) for seed in range(TREES)]
    found: list[Pair] = []
    lookalikes, lookalikes_kept = np.zeros(len(queries), np.int64), np.zeros(len(kept), np.int64)
    for begin in range(0, len(asking), _CHUNK):
        some = asking[begin : begin + _CHUNK]
        after = np.searchsorted(places, some, side="right") if others is None else np.zeros(len(some), np.int64)
        greys = fingerprint.greys(queries[some])
        asker, member, window = _candidates(forest, short, describe_images(greys, WINDOWS), after, out)
        lookalikes += np.bincount(some[asker], minlength=len(queries))
        lookalikes_kept += np.bincount(places[member], minlength=len(kept))
        tiny = fingerprint.sides(queries[some]) < TINY
        likely = _likely(greys, long, asker, member, window, tiny)
        a, b, window = some[asker[likely]], places[member[likely]], window[likely]
        plausible = _plausible(queries, kept, a, b, window)
        found += _align_pairs(queries, kept, a[plausible], b[plausible], window[plausible], out)
        advance(len(some))
    if others is None:
        lookalikes = lookalikes_kept = lookalikes + lookalikes_kept
    out.pairs = _beyond_chance(queries, kept, found, lookalikes, lookalikes_kept)
    if swap:
        out.pairs = [Pair(pair.second, pair.first, pair.similarity, pair.how) for pair in out.pairs]
    out.pairs.sort(key=lambda pair: (-pair.similarity, pair.first, pair.second))
    return out


def confirm(image: Image.Image, other: Image.Image, trimmed: Sequence[tuple[bool, bool]] = ((False, False),)) -> float:
    """How much two whole images agree once one is laid over the other: SAME and more for one image, else less.

    `trimmed` says which of them to compare without its border, as `Pair` has it; the best agreement counts. Sees more than
    the fingerprints do: pass both at 96 pixels or more along the shorter side where they have them.
    """
    best = 0.0
    for which in trimmed:
        first, second = (
            (remove_border(whole) or whole) if without else whole for whole, without in zip((image, other), which, strict=True)
        )
        best = max(best, _agreement(first, second))
        if best >= SAME:
            break
    return best


def _agreement(image: Image.Image, other: Image.Image) -> float:
    prints = np.stack([fingerprint.compute_fingerprint(image), fingerprint.compute_fingerprint(other)])
    if fingerprint.is_flat(prints).any():
        return 0.0
    first, second = fingerprint.greys(prints[:1]), fingerprint.greys(prints[1:])
    window = WINDOWS[int((describe_images(first, WINDOWS)[0] @ describe_images(second, (CENTRAL,))[0, 0]).argmax())]
    rough = align(orient(first, [window]), second, _start([window]))
    shorter = min(*image.size, *other.size)
    side = min(_FINE, max(shorter, fingerprint.SIZE))
    fine = align(orient(_grey(image, side), [window]), _grey(other, side), rough.windows, steps=3)
    return float(_similarity(fine)[0])


# Look-up ------------------------------------------------------------------------------------------------------------------


def _describe(prints: Prints, places: Indices) -> tuple[Floats, Floats]:
    """The short and the long description of every image's middle."""
    short, long = [], []
    for i in range(0, len(places), _CHUNK):
        greys = fingerprint.greys(prints[places[i : i + _CHUNK]])
        short.append(describe_images(greys, (CENTRAL,))[:, 0])
        long.append(describe_images(greys, (CENTRAL,), LONG)[:, 0])
    return np.concatenate(short), np.concatenate(long)


def _candidates(
    forest: list[Tree], vectors: Floats, seen: Floats, after: Indices, out: Search
) -> tuple[Indices, Indices, Indices]:
    """Who asks, who is found, and through which window they look most alike. Members before `after` are left out."""
    count, windows, _ = seen.shape
    seen = seen.reshape(count * windows, -1)
    near = []
    for tree in forest:
        leaf = lookup(tree, seen)
        rows = np.flatnonzero(leaf >= 0)
        leaf = leaf[rows]
        begin = np.searchsorted(tree.sought, leaf * len(vectors) + after[rows // windows])
        length = np.clip(tree.starts[leaf + 1] - begin, 0, MANY)
        out.compared += int(length.sum())
        for part in np.array_split(np.arange(len(rows)), 1 + int(length.sum()) // 200_000):
            row = np.repeat(rows[part], length[part])
            offset = np.cumsum(length[part]) - length[part]
            member = tree.members[np.repeat(begin[part] - offset, length[part]) + np.arange(len(row))]
            cosine = np.einsum("pd,pd->p", seen[row], vectors[member])
            row, member, cosine = (x[cosine >= NEAR] for x in (row, member, cosine))
            near.append(np.stack([row // windows, member, row % windows, (cosine * 1e6).astype(np.int64)]))
    asker, member, window, closeness = np.concatenate([np.empty((4, 0), np.int64), *near], axis=1)
    order = np.lexsort((window, -closeness, member, asker))
    asker, member, window = asker[order], member[order], window[order]
    best = np.ones(len(order), bool)
    best[1:] = (asker[1:] != asker[:-1]) | (member[1:] != member[:-1])
    return asker[best], member[best], window[best]


def _likely(greys: Floats, long: Floats, asker: Indices, member: Indices, window: Indices, tiny: NDArray[np.bool_]) -> Indices:
    """Which candidates are alike in more frequencies, too, if a small crop is allowed for."""
    cosine = np.zeros(len(asker), np.float32)
    for number in np.unique(window):
        rows = np.flatnonzero(window == number)
        askers, which = np.unique(asker[rows], return_inverse=True)
        planes = tangents(greys[askers], WINDOWS[number])
        for i in range(0, len(rows), 4096):
            part, plane = rows[i : i + 4096], planes[which[i : i + 4096]]
            within = plane @ long[member[part], :, None]
            cosine[part] = np.sqrt((within**2).sum(axis=(1, 2)))
    lookalikes = np.bincount(asker[cosine < LIKELY], minlength=len(greys))
    return np.flatnonzero(cosine >= _stricter(LIKELY, np.where(tiny, lookalikes, 0))[asker])


def _stricter(least: float, lookalikes: Indices) -> NDArray[np.float64]:
    """The threshold for an image with so many lookalikes: the best of many lookalikes comes close by chance."""
    return np.asarray(1 - (1 - least) / np.sqrt(1 + lookalikes))


# Verification -------------------------------------------------------------------------------------------------------------


def _plausible(queries: Prints, kept: Prints, a: Indices, b: Indices, window: Indices) -> Indices:
    """Which pairs have about the same shape and, where both have colour, about the same colours."""
    keep = []
    lying = np.array([-1 if w.turns % 2 else 1 for w in WINDOWS])  # width and height change places
    for i in range(0, len(a), 8192):
        first, second, through = queries[a[i : i + 8192]], kept[b[i : i + 8192]], window[i : i + 8192]
        shape = np.abs(fingerprint.shapes(first) * lying[through] - fingerprint.shapes(second)) <= OCTAVES
        tint, other = orient(fingerprint.tints(first), [WINDOWS[w] for w in through]), fingerprint.tints(second)
        product, strength, strength_other = (
            np.einsum("pcij,pcij->p", *x) for x in ((tint, other), (tint, tint), (other, other))
        )
        least = COLOURFUL**2 * tint[0].size
        grey = (strength < least) | (strength_other < least)
        keep.append(shape & (grey | (product >= HUE * np.sqrt(strength * strength_other))))
    return np.flatnonzero(np.concatenate([np.empty(0, bool), *keep]))


def _align_pairs(queries: Prints, kept: Prints, a: Indices, b: Indices, window: Indices, out: Search) -> list[Pair]:
    pairs = []
    for i in range(0, len(a), _BATCH):
        first, second = queries[a[i : i + _BATCH]], kept[b[i : i + _BATCH]]
        windows = [WINDOWS[w] for w in window[i : i + _BATCH]]
        result = align(orient(fingerprint.greys(first), windows), fingerprint.greys(second), _start(windows))
        similarity = _similarity(result)
        colour, colour_other = (np.sqrt((fingerprint.tints(p) ** 2).mean(axis=(1, 2, 3))) for p in (first, second))
        turned_grey = (np.minimum(colour, colour_other) < GREY) & (np.maximum(colour, colour_other) > COLOURFUL)
        # Where the second image's edges lie in the first: inside or outside of it if one of them is a crop.
        shift, scale = np.abs(result.windows.shift), np.abs(result.windows.scale - 1) / 2
        cropped = (shift + scale).max(axis=1) > EDGE / 4
        for k in np.flatnonzero(similarity >= SAME):
            ways = (
                ("mirrored", windows[k].mirrored),
                (f"turned by {180 if windows[k].turns == 2 else 90} degrees", windows[k].turns),
                ("cropped", cropped[k]),
                ("turned grey", turned_grey[k]),
            )
            how = ", ".join(way for way, is_so in ways if is_so) or SAME_IMAGE
            pairs.append(Pair(int(a[i + k]), int(b[i + k]), float(similarity[k]), how))
        out.aligned += len(first)
    return pairs


def _similarity(result: Agreement) -> Floats:
    fits = (result.overall >= OVERALL) & (result.overlap >= 1 - 5 * EDGE)
    return np.where(fits, np.maximum(result.detail, 0), 0).astype(np.float32)


def _beyond_chance(
    queries: Prints, kept: Prints, pairs: list[Pair], lookalikes: Indices, lookalikes_kept: Indices
) -> list[Pair]:
    """Without the pairs of tiny images that agree no better than one of so many lookalikes may by chance.

    Copies of an image are no lookalikes of it, however many there are.
    """
    a, b = np.array([p.first for p in pairs], np.int64), np.array([p.second for p in pairs], np.int64)
    copies, copies_kept = np.bincount(a, minlength=len(queries)), np.bincount(b, minlength=len(kept))
    if lookalikes is lookalikes_kept:
        copies = copies_kept = copies + copies_kept
    crowd = np.maximum((lookalikes - copies)[a], (lookalikes_kept - copies_kept)[b])
    tiny = np.minimum(fingerprint.sides(queries[a]), fingerprint.sides(kept[b])) < TINY
    least = _stricter(SAME, np.where(tiny, crowd, 0))
    return [pair for pair, enough in zip(pairs, least, strict=True) if pair.similarity >= enough]


def _start(windows: list[Window]) -> Windows:
    """The alignment that each window stands for: it shows of the first image what the central one shows of the second."""
    edges = np.array([(w.rows, w.columns) for w in windows], np.float32)
    before, after = edges[:, :, 0], edges[:, :, 1]
    scale = (1 - before - after) / (1 - 2 * EDGE)
    return Windows(np.asarray((before - after) / 2, np.float32), np.asarray(scale, np.float32))


def _grey(image: Image.Image, side: int) -> Floats:
    grey = np.asarray(image.convert("L").convert("F").resize((side, side), Image.Resampling.BILINEAR), np.float32)
    return (grey - grey.mean())[None]
