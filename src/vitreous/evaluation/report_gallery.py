"""The images of an evaluation's report: which are shown, where the model looked, which training images they resemble.

The page stays one file of a few megabytes, so only some images of each cell of the confusion matrix are shown: of the wrong
ones those with the highest loss, of the correct ones those with the lowest confidence. Each is shown as the model got it,
cropped and resized, or the attention map would not lie over it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.core.progress import progress_bar
from vitreous.data.source import Source, Stream
from vitreous.data.transforms.image import to_bytes, to_tensor
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.baseline import affordable_images
from vitreous.evaluation.class_tables import Cell
from vitreous.evaluation.predictions import Predictions
from vitreous.inference.distributed_pass import read_contents
from vitreous.inference.features import Features
from vitreous.inference.nearest_neighbours import nearest_neighbours
from vitreous.inference.runner import Runner, default_batch_size
from vitreous.inference.thumbnails import embed_thumbnail
from vitreous.inspection.attention_rollout import attention_map
from vitreous.reports.image_cards import ImageCard, Neighbour
from vitreous.reports.images import EmbeddedImage, embed_image, encode_image

# Images of one wrong cell, and of all wrong cells.
IN_CELL, WRONG = 12, 200
# The same of cells on the diagonal.
RIGHT_IN_CELL, RIGHT = 3, 60
NEIGHBOURS = 3
# Of all images; what comes later is left out.
BYTES = 7_000_000
# Pixels of a neighbour.
_THUMBNAIL = 72
# Attention maps, whatever they cost.
_LEAST_LOOKED = 24

# Which ------------------------------------------------------------------------------------------------------------------------


def group_cells(predictions: Predictions) -> dict[Cell, list[int]]:
    """The rows of every cell of the confusion matrix: wrong ones highest loss first, correct ones lowest confidence first."""
    found: defaultdict[Cell, list[int]] = defaultdict(list)
    for row, own in enumerate(predictions.labels):
        if own:
            found[own[0], int(predictions.top[row, 0])].append(row)
    for (truth, guess), rows in found.items():
        keys = predictions.probabilities[rows, 0] if truth == guess else -_finite(predictions.losses[rows])
        rows[:] = [rows[k] for k in np.argsort(keys, kind="stable")]
    return dict(found)


def choose_images(cells: Mapping[Cell, Sequence[int]], allowed: Iterable[Cell] | None = None) -> dict[Cell, list[int]]:
    """What is shown of each cell. Every cell gets one image before any gets a second, the fullest cells first."""
    chosen = set(cells if allowed is None else allowed)
    order = sorted((cell for cell in cells if cell in chosen), key=lambda cell: (-len(cells[cell]), cell))
    wrong = _in_turns(cells, [cell for cell in order if cell[0] != cell[1]], IN_CELL, WRONG)
    return wrong | _in_turns(cells, [cell for cell in order if cell[0] == cell[1]], RIGHT_IN_CELL, RIGHT)


def _in_turns(cells: Mapping[Cell, Sequence[int]], order: Sequence[Cell], each: int, most: int) -> dict[Cell, list[int]]:
    kept: dict[Cell, list[int]] = {}
    for turn in range(each):
        for cell in order:
            if turn < len(cells[cell]) and most > 0:
                kept.setdefault(cell, []).append(cells[cell][turn])
                most -= 1
    return kept


def _finite(losses: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.nan_to_num(losses, nan=0.0, posinf=float(np.finfo(np.float32).max))


# What is in them --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gallery:
    """The images that are on the page, by row of the predictions."""

    predictions: Predictions
    names: Mapping[int, str]
    """Of the model's classes."""
    images: Mapping[int, EmbeddedImage]
    attention: Mapping[int, str]
    """Data URIs, of those images for which there was time."""
    neighbours: Mapping[int, Sequence[Neighbour]]

    def cards(self, rows: Iterable[int]) -> dict[int, ImageCard]:
        """By row, without images that are not there."""
        return {row: self._card(row) for row in rows if row in self.images}

    def _card(self, row: int) -> ImageCard:
        own, loss = self.predictions.labels[row], self.predictions.losses[row]
        return ImageCard(
            self.predictions.ids[row],
            self.images[row],
            truth=" + ".join(self.names[label] for label in own) or "unknown",
            predictions=self.predictions.best(row, self.names),
            loss=f"loss {loss:.3g}" if math.isfinite(loss) else "",
            attention=self.attention.get(row),
            neighbours=self.neighbours.get(row, ()),
        )


def build_gallery(
    clf: Classifier,
    data: Source | Stream,
    predictions: Predictions,
    rows: Sequence[int],
    *,
    names: Mapping[int, str],
    preprocess: Preprocess | None = None,
    device: torch.device | str = "cpu",
    training: Features | None = None,
    training_data: Source | Stream | None = None,
) -> Gallery:
    """The images of these rows of the predictions, most important first; later ones are left out where room or time ends."""
    preprocess = preprocess or clf.preprocess
    rows = list(dict.fromkeys(rows))
    images: dict[int, EmbeddedImage] = {}
    heats: dict[int, str] = {}
    features: dict[int, NDArray[np.float32]] = {}
    looks = max(_LEAST_LOOKED, affordable_images(clf.model, preprocess, device))
    size, batch = 0, default_batch_size(preprocess, device)
    room = BYTES - (len(rows) * NEIGHBOURS * 3500 if training is not None and training_data is not None else 0)
    contents = read_contents(data, predictions.numbers, predictions.ids, rows)
    with (
        Runner(clf.model, device, lean=True, engine=clf.engine) as runner,
        progress_bar("images for the report", len(rows)) as advance,
    ):
        while part := list(itertools.islice(contents, batch)):
            prepared: dict[int, Tensor] = {}
            for row, content in part:
                # It was there a moment ago; where it is no longer, the page does without.
                with contextlib.suppress(VitreousError):
                    if size <= room:
                        seen = preprocess.transform(content, place=predictions.ids[row])
                        images[row] = embed_image(np.ascontiguousarray(to_bytes(seen)))
                        size += len(images[row].uri)
                        prepared[row] = preprocess.scale(to_tensor(seen))
            if looking := list(prepared)[: looks - len(heats)]:
                shown = torch.from_numpy(predictions.top[looking, 0]).to(device)
                maps = attention_map(clf.model, torch.stack([prepared[row] for row in looking]).to(device), shown)
                heats |= {row: attention_overlay(map_) for row, map_ in zip(looking, maps.float().cpu().numpy(), strict=True)}
                size += sum(len(heats[row]) for row in looking)
            if predictions.features is not None:
                features |= {row: predictions.features[row] for row in prepared}
            elif training is not None and prepared:
                found = runner.run(torch.stack([*prepared.values()])).features.numpy()
                features |= dict(zip(prepared, found, strict=True))
            advance(len(part))
    near = _nearest(features, training, training_data) if training is not None and len(training) and features else {}
    return Gallery(predictions, names, images, heats, near)


def attention_overlay(values: NDArray[np.float32]) -> str:
    """Laid over the image: the higher the value (0 to 1), the more opaque a colour that few images have."""
    alpha = np.round(np.clip(values, 0, 1) * 190).astype(np.uint8)
    colour = np.broadcast_to(np.array([255, 0, 110], np.uint8), (*alpha.shape, 3))
    return encode_image(Image.fromarray(np.concatenate([colour, alpha[..., None]], axis=2)), "PNG", optimize=True)


# Pieces -----------------------------------------------------------------------------------------------------------------------


def _nearest(
    known: Mapping[int, NDArray[np.float32]], training: Features, data: Source | Stream | None
) -> dict[int, Sequence[Neighbour]]:
    found = nearest_neighbours(np.stack([*known.values()]), training.values, NEIGHBOURS)
    shown = sorted(set(found.rows.flatten().tolist()))
    contents = read_contents(data, training.numbers, training.ids, shown) if data is not None else ()
    thumbnails = {there: embed_thumbnail(content, training.ids[there], _THUMBNAIL) for there, content in contents}

    def neighbour(there: int, similarity: float) -> Neighbour:
        label = " + ".join(training.classes[k] for k in training.labels[there]) or "unknown"
        return thumbnails.get(there), label, similarity, training.ids[there]

    pairs = zip(known, found.rows.tolist(), found.similarities.tolist(), strict=True)
    return {row: tuple(map(neighbour, near, similarities)) for row, near, similarities in pairs}
