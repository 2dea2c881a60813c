"""The images of an evaluation's report: which are shown, where the model looked, which training images they resemble.

The page stays one file of a few megabytes, so only some images of each cell of the confusion matrix are shown: of the wrong
ones those with the highest loss, of the correct ones those with the lowest confidence. Each is shown as the model got it,
cropped and resized, or the attention map would not lie over it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.core.progress import progress_bar
from vitreous.data.source import Content, Source, Stream
from vitreous.data.transforms.decode import decode
from vitreous.data.transforms.image import to_bytes, to_tensor
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.class_tables import Cell
from vitreous.evaluation.nearest_neighbours import nearest_neighbours
from vitreous.evaluation.predictions import Predictions
from vitreous.inference.features import Features
from vitreous.inference.runner import Runner, default_batch_size
from vitreous.inspection.attention_rollout import attention_map
from vitreous.models.vit import ViT
from vitreous.reports.image_cards import ImageCard, Neighbour
from vitreous.reports.images import TINY, EmbeddedImage, embed_image, encode_image

# Images of one wrong cell, and of all wrong cells.
IN_CELL, WRONG = 12, 200
# The same of cells on the diagonal.
RIGHT_IN_CELL, RIGHT = 3, 60
NEIGHBOURS = 3
# Of all images; what comes later is left out.
BYTES = 7_000_000
# Pixels of a neighbour.
_THUMBNAIL = 72
# Multiply-adds spent on attention maps: under a minute on two cores.
_CPU_MACS, _OTHER_MACS = 5e12, 2e14
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
    wanted = set(cells if allowed is None else allowed)
    order = sorted((cell for cell in cells if cell in wanted), key=lambda cell: (-len(cells[cell]), cell))
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
    looks = _affordable(clf, preprocess, device)
    wants = training is not None and len(training) > 0
    own = predictions.features
    size, batch = 0, default_batch_size(preprocess, device)
    room = BYTES - (len(rows) * NEIGHBOURS * 3500 if wants and training_data is not None else 0)
    with Runner(clf.model, device, lean=True) as runner, progress_bar("images for the report", len(rows)) as advance:
        for part in _batches(_contents(data, predictions.numbers, predictions.ids, rows), batch):
            prepared: list[tuple[int, Tensor]] = []
            for row, content in part:
                if size > room:
                    continue
                try:
                    seen = preprocess.transform(content, place=predictions.ids[row])
                except VitreousError:
                    # It was there a moment ago; the page does without.
                    continue
                images[row] = embed_image(np.ascontiguousarray(to_bytes(seen)))
                size += len(images[row].uri)
                prepared.append((row, preprocess.scale(to_tensor(seen))))
            looking = [entry for entry in prepared if len(heats) < looks][: looks - len(heats)]
            if looking:
                for (row, _), map_ in zip(looking, _looked(clf, looking, predictions.top[:, 0], device), strict=True):
                    heats[row] = attention_overlay(map_)
                    size += len(heats[row])
            if wants and own is None and prepared:
                found = runner.run(torch.stack([image for _, image in prepared])).features.numpy()
                features |= {row: values for (row, _), values in zip(prepared, found, strict=True)}
            advance(len(part))
    near: dict[int, Sequence[Neighbour]] = {}
    if training is not None and wants:
        known = {row: own[row] for row in images} if own is not None else features
        near = _nearest(known, training, training_data)
    return Gallery(predictions, names, images, heats, near)


def attention_overlay(values: NDArray[np.float32]) -> str:
    """Laid over the image: the higher the value (0 to 1), the more opaque a colour that few images have."""
    alpha = np.round(np.clip(values, 0, 1) * 190).astype(np.uint8)
    colour = np.broadcast_to(np.array([255, 0, 110], np.uint8), (*alpha.shape, 3))
    return encode_image(Image.fromarray(np.concatenate([colour, alpha[..., None]], axis=2)), "PNG", optimize=True)


# Pieces -----------------------------------------------------------------------------------------------------------------------


def _affordable(clf: Classifier, preprocess: Preprocess, device: torch.device | str) -> int:
    height, width = preprocess.size or clf.config.image_size
    own_height, own_width = clf.config.image_size
    parameters = sum(parameter.numel() for parameter in clf.model.parameters())
    # Nearly every weight meets every token; a ResNet-50's meet 160 places each. `compute_cost` is exact but slow.
    each = clf.config.tokens if isinstance(clf.model, ViT) else 160 * own_height * own_width / 224**2
    macs = parameters * each * height * width / (own_height * own_width)
    budget = _CPU_MACS if torch.device(device).type == "cpu" else _OTHER_MACS
    return max(_LEAST_LOOKED, int(budget / macs))


def _looked(
    clf: Classifier, prepared: Sequence[tuple[int, Tensor]], guesses: NDArray[np.int64], device: torch.device | str
) -> NDArray[np.float32]:
    images = torch.stack([image for _, image in prepared]).to(device)
    shown = torch.from_numpy(guesses[[row for row, _ in prepared]]).to(device)
    return np.asarray(attention_map(clf.model, images, shown).float().cpu().numpy(), np.float32)


def _nearest(
    known: Mapping[int, NDArray[np.float32]], training: Features, data: Source | Stream | None
) -> dict[int, Sequence[Neighbour]]:
    if not known:
        return {}
    rows = list(known)
    found = nearest_neighbours(np.stack([known[row] for row in rows]), training.values, NEIGHBOURS)
    pictures: dict[int, EmbeddedImage | None] = {}
    if data is not None:
        wanted = sorted(set(found.rows.flatten().tolist()))
        for there, content in _contents(data, training.numbers, training.ids, wanted):
            pictures[there] = _thumbnail(content, training.ids[there])

    def neighbour(there: int, similarity: float) -> Neighbour:
        label = " + ".join(training.classes[k] for k in training.labels[there]) or "unknown"
        return pictures.get(there), label, similarity, training.ids[there]

    return {row: tuple(map(neighbour, found.rows[k].tolist(), found.similarities[k].tolist())) for k, row in enumerate(rows)}


def _thumbnail(content: Content, place: str) -> EmbeddedImage | None:
    try:
        image = decode(content, place=place)
    except VitreousError:
        return None
    if max(image.size) > TINY:
        image.thumbnail((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BILINEAR)
    return embed_image(np.asarray(image), _THUMBNAIL)


def _contents(
    data: Source | Stream, numbers: NDArray[np.int64], ids: Sequence[str], rows: Sequence[int]
) -> Iterator[tuple[int, Content]]:
    """Of a source in the order asked; of a stream, whose items have names of their own, in the order they come."""
    if isinstance(data, Source):
        for row in rows:
            try:
                yield row, data.read(int(numbers[row]))
            except VitreousError:
                continue
        return
    wanted = {ids[row]: row for row in rows}
    try:
        for item in data.items():
            if item.id in wanted:
                yield wanted.pop(item.id), item.content
            if not wanted:
                return
    except VitreousError:
        return


def _batches(found: Iterable[tuple[int, Content]], size: int) -> Iterator[list[tuple[int, Content]]]:
    part: list[tuple[int, Content]] = []
    for entry in found:
        part.append(entry)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
